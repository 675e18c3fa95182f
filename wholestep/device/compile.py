"""The backend `wholestep` of `torch.compile`: forward and backward pass of each graph are one program each."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import ShortenTraceback
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import CheckpointPolicy

from wholestep.device import exchange
from wholestep.device.buffer import over_array
from wholestep.device.graph_breaks import report_graph_breaks
from wholestep.device.random import GENERATOR
from wholestep.device.transfer import draw_key, from_jax, to_jax
from wholestep.errors import DataDependentError, LoweringError
from wholestep.graph.decompositions import decompositions
from wholestep.graph.random import is_random, number_draws
from wholestep.graph.step import graph_module
from wholestep.graph.trace import unknown_shape
from wholestep.xla.function import GraphFunction

_LINE = re.compile(r'File "(.+)", line (\d+)')
_MODULE = re.compile(r"^L\['\w+'\]\.?")


class CompileError(LoweringError, ShortenTraceback):
    """A graph cannot be lowered, in the form in which `torch.compile` does not wrap it into an error of its own."""

    def __init__(self, message: str, frame: FrameType | None) -> None:
        """
        Args:
            frame: the outermost one to show; those of PyTorch's compiler are not.
        """
        ShortenTraceback.__init__(self, message, first_useful_frame=frame)


def wholestep(module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """What `torch.compile(..., backend="wholestep")`, which finds it as an entry point, calls for each graph that it
    records.

    Shapes are static: another shape is another program, also where PyTorch proposes a symbolic size.

    Args:
        options: `mode` and `options` of `torch.compile`, which are for PyTorch's own compiler.

    Raises:
        CompileError: operators of the graph or of its gradient have no lowering; all of them. Or a result's shape
            depends on values.
    """
    report_graph_breaks("wholestep")  # again: torch._logging.set_logs ends it
    for value in inputs:
        _specialize(value)
    try:
        # Programs leave the arrays they are given as they are, so a graph can be kept for another backward pass.
        with functorch_config.patch(donated_buffer=False):
            return _autograd(module, inputs)
    except (LoweringError, DataDependentError) as error:
        raise CompileError(str(error), inspect.currentframe()) from error


class Compiled:
    """One graph of AOTAutograd as a function of tensors: what it computes is one program."""

    def __init__(self, module: fx.GraphModule, shown: int = 0) -> None:
        """
        Args:
            shown: how many of the first results come before the user's eyes, or have views made of them. These get
                the strides that they have in eager PyTorch.

        Raises:
            LoweringError: operators have no lowering.
        """
        self._inputs = module.graph.find_nodes(op="placeholder")
        self._results = _results(module)
        self._shown = _computed(self._results[:shown])
        self._views = _views(self._shown, self._inputs)
        self._computed = [node for node in _computed(self._results) if node not in self._views]
        self._function = GraphFunction(_labelled(module, self._computed))

    def __call__(self, *args: Any) -> list[Any]:
        given = dict(zip(self._inputs, args, strict=True))
        tensors = {node: value for node, value in given.items() if isinstance(value, Tensor)}
        arrays = [_array(tensor, node.name) for node, tensor in tensors.items()]
        results = self._function(self._key(), *arrays)
        # A copy of an input is the input itself in a program of values, and shares its memory.
        taken = {tensor.data_ptr() for tensor in tensors.values() if tensor.device.type == "cpu"}
        for node, array in zip(self._computed, results, strict=True):
            like = node.meta["val"]
            if like.device.type == "tpu":
                given[node] = over_array(array, like.dtype)
                continue
            tensor = from_jax(array, like.dtype)
            given[node] = tensor.clone() if tensor.data_ptr() in taken else tensor
            taken.add(tensor.data_ptr())
        for node, owner in self._views.items():
            like = node.meta["val"]
            given[node] = given[owner].as_strided(like.shape, like.stride(), like.storage_offset())
        for node in self._shown:
            given[node] = _strided(given[node], node.meta["val"])
        return [given[result] if isinstance(result, fx.Node) else result for result in self._results]

    def _key(self) -> jax.Array | None:
        """What this call draws from: the generator of the device it runs on."""
        if not self._function.draws:
            return None
        values = (node.meta["val"] for node in (*self._inputs, *self._computed))
        on_tpu = any(isinstance(value, Tensor) and value.device.type == "tpu" for value in values)
        return GENERATOR.key() if on_tpu else draw_key()


def _array(tensor: Tensor, name: str) -> jax.Array:
    return exchange.to_jax(tensor) if tensor.device.type == "tpu" else to_jax(tensor, name)


def _results(module: fx.GraphModule) -> list[Any]:
    """Nodes, and what is no tensor, such as None for the gradient of what has none."""
    return list(module.graph.output_node().args[0])


def _computed(results: Sequence[Any]) -> list[fx.Node]:
    """The nodes among these, each once, that are not inputs."""
    nodes = [result for result in results if isinstance(result, fx.Node)]
    return list(dict.fromkeys(node for node in nodes if node.op != "placeholder"))


def _views(results: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    """The results that are views of an input -> that. Of the several views that one operator gives, PyTorch makes no
    views itself."""
    owners = {
        StorageWeakRef(node.meta["val"].untyped_storage()): node
        for node in inputs
        if isinstance(node.meta["val"], Tensor)
    }
    found = {node: owners.get(StorageWeakRef(node.meta["val"].untyped_storage())) for node in results}
    return {node: owner for node, owner in found.items() if owner is not None and _bits(owner) == _bits(node)}


def _bits(node: fx.Node) -> tuple[torch.dtype, bool, bool]:
    """How a node's elements follow from what memory holds."""
    value = node.meta["val"]
    return value.dtype, value.is_conj(), value.is_neg()


def _strided(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor` with the strides of `like`, where those leave nothing out and repeat nothing."""
    if like.is_contiguous() or not torch.ops.aten.is_non_overlapping_and_dense(like):
        return tensor
    return torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _labelled(module: fx.GraphModule, results: Sequence[fx.Node]) -> fx.GraphModule:
    """A copy of the graph that has these results, and the labels of a graph that was traced by ourselves."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.graph_copy(module.graph, copies)
    graph.output([copies[node] for node in results])
    for node in graph.nodes:
        if node.op == "placeholder" and not isinstance(node.meta["val"], Tensor):
            assert not node.users, f"{node} is a size, and sizes are static"
            graph.erase_node(node)
            continue
        stack = list((node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}).values())
        lines = _LINE.findall(node.meta.get("stack_trace") or "")
        node.meta |= {
            "module": _MODULE.sub("", stack[-1][0]) if stack else "",
            "line": f"{Path(lines[-1][0]).name}:{lines[-1][1]}" if lines else "",
            "backward": bool(node.meta.get("autograd_backward")),
        }
        if _has_unknown_shape(node):
            raise unknown_shape(node.meta["line"] or "in PyTorch", node.target)
    number_draws(graph.nodes)
    return graph_module(module, graph)


def _has_unknown_shape(node: fx.Node) -> bool:
    """Whether values decide the shape of its result."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target is torch.ops.aten.index.Tensor:
        return any(index is not None and index.meta["val"].dtype == torch.bool for index in node.args[1])
    return torch.Tag.dynamic_output_shape in node.target.tags


def _specialize(value: Any) -> None:
    """Make what PyTorch holds to be a variable size, in its plan of when to compile again, this very size."""
    for size in value.shape if isinstance(value, Tensor) else [value] if isinstance(value, torch.SymInt) else []:
        int(size)


def _partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The joint graph as forward and backward pass. What is cheap to compute again is not kept between them; random
    numbers are, so that nothing has to draw the same ones twice."""
    GraphFunction(_labelled(joint, _computed(_results(joint))))  # one error for what both passes miss
    for node in filter(is_random, joint.graph.nodes):
        for drawn in (node, *(user for user in node.users if user.target is operator.getitem)):
            drawn.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(joint, *args, **kwargs)


def _forward(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return make_boxed_func(Compiled(module, TracingContext.get().fw_metadata.num_forward_returns))


def _backward(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return make_boxed_func(Compiled(module))


_autograd = aot_autograd(
    fw_compiler=_forward, bw_compiler=_backward, partition_fn=_partition, decompositions=decompositions
)
# Before the first graph: a function that dynamo skips never gets to the backend.
report_graph_breaks("wholestep")
