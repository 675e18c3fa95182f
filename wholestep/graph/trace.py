"""A Python function over tensors -> an FX graph of ATen operators, each labelled with the module it came from."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch._guards import detect_fake_mode
from torch._higher_order_ops.utils import reenter_make_fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import (
    PythonKeyTracer,
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from wholestep.errors import DataDependentError, GraphError
from wholestep.graph.decompositions import decompositions
from wholestep.graph.random import number_draws
from wholestep.graph.step import copy_graph
from wholestep.graph.strided import read_strided_from_owners
from wholestep.graph.writes import remove_writes

aten = torch.ops.aten

# What calls operators on behalf of the lines that are looked for: PyTorch, capture, and the rooms that shard and lower.
_HERE = Path(__file__).parents[1]
_MACHINERY = tuple(
    str(path) + ending
    for path, ending in (
        (Path(torch.__file__).parent, os.sep),
        (_HERE / "parallel", os.sep),
        (_HERE / "xla", os.sep),
        (_HERE / "graph" / "capture.py", ""),
    )
)

# Operators whose results' shapes depend on values -> what to write instead.
_FIXED_SHAPES = {
    aten._unique2: "torch.sort leaves equal values side by side, and a mask can tell the first of each",
    aten.bincount: "torch.zeros(bins).scatter_add(0, x, ones) counts into a fixed number of bins",
    aten.repeat_interleave: "a number of repeats that is a Python number, the same for all, gives a fixed shape",
    aten.unique_consecutive: "a mask, x[1:] != x[:-1], can tell the first of each run",
    aten.unique_dim: "torch.sort leaves equal values side by side, and a mask can tell the first of each",
}

# What PyTorch says where a value is read otherwise than by an operator.
_READS_MEMORY = (".numpy() is not supported for tensor subclasses", "its data is not allocated yet")


class ForeignTensorError(GraphError):
    """A graph reads a tensor that is not among its inputs.

    Attributes:
        tensor: which.
    """

    def __init__(self, path: str, tensor: Tensor) -> None:
        super().__init__(f"{path} reads a tensor that it was not given")
        self.tensor = tensor


def trace(function: Callable[..., Any], inputs: Sequence[Any], module: nn.Module | None = None) -> fx.GraphModule:
    """Run `function(*inputs)` on fake tensors and record its ATen operators.

    Args:
        function: pure; its result is a tree of tensors, which becomes the graph's flat outputs.
        inputs: trees of tensors, fake or not; the graph has one placeholder for each leaf, in order.
        module: where given, the nodes made while a submodule's forward runs, and those made by their gradients, get
            that submodule's path as `meta["module"]`; and, with or without, the line of code as `meta["line"]`.

    Raises:
        DataDependentError: a shape, or what Python does, depends on values.
        GraphError: it reads a tensor that it was not given, writes into what others see, or an input is sparse.
    """
    if any(isinstance(x, Tensor) and x.layout != torch.strided for x in tree_leaves(inputs)):
        raise GraphError("sparse tensors cannot be captured; use x.to_dense()")
    make = make_fx(_flat(function), decomposition_table=decompositions(), tracing_mode="fake")
    lazily = _use_lazy_graph_module(True)
    with fx_traceback.preserve_node_meta(), _module_paths(module), _Lines(), lazily, _without_onednn():
        try:
            graph_module = make(*_fake(inputs))
        except RuntimeError as error:
            if (refusal := _data_dependent(error)) is None:
                raise
            raise refusal from error
    graph_module = copy_graph(graph_module)  # flat placeholders, whatever tree the inputs were
    return _finished(graph_module)


def trace_body(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """The same for a part of what is being traced: a graph of its own, from tensors of the trace or fakes like them."""
    return _finished(reenter_make_fx(function)(*inputs))


def _finished(graph_module: fx.GraphModule) -> fx.GraphModule:
    _label(graph_module)
    _check_closed(graph_module)
    _check_dense(graph_module)
    read_strided_from_owners(graph_module)
    graph_module = remove_writes(graph_module, decompositions())
    number_draws(node for node in graph_module.graph.nodes if "draw" not in node.meta)
    return graph_module


def record(
    target: Callable[..., Any], args: Sequence[Any], results: Any, body: fx.GraphModule | None = None, **kwargs: Any
) -> Any:
    """Put a call of `target`, which tracing would look into, into the graph that is being traced, as one node.

    Args:
        target: what the node calls.
        args: trees of tensors of the trace.
        results: a tree of tensors like its results.
        body: a graph that is its first argument; nodes of one body share it.
        kwargs: plain values.

    Returns:
        The results, as tensors of the trace.
    """
    mode = get_proxy_mode()
    assert mode is not None and isinstance(mode.tracer, PythonKeyTracer), "nothing is being traced"
    operands = tree_map(mode.tracer.unwrap_proxy, tuple(args))
    if body is not None:
        root = mode.tracer.root
        name = next((name for name, child in root.named_children() if child is body), None)
        if name is None:
            name = mode.tracer.get_fresh_qualname(f"{target.__name__}_body")
            root.register_module(name, body)
        operands = (mode.tracer.create_proxy("get_attr", name, (), {}), *operands)
    with disable_proxy_modes_tracing():
        fakes = tree_map(torch.empty_like, results)
    node = mode.tracer.create_proxy("call_function", target, operands, kwargs, name=target.__name__)
    return track_tensor_tree(fakes, node, constant=None, tracer=mode.tracer)


def gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], tangents: Sequence[Tensor] | None = None
) -> list[Tensor | None]:
    """`torch.autograd.grad`, under which traced nodes know which forward operator they are the gradient of. None for
    an input that no output depends on."""
    roots = [output.grad_fn for output in outputs if output.grad_fn is not None]
    if not roots:
        return [None] * len(inputs)
    setup_stacktrace_preservation_hooks(roots)
    return list(torch.autograd.grad(outputs, inputs, tangents, allow_unused=True))


def _flat(function: Callable[..., Any]) -> Callable[..., list[Tensor]]:
    return lambda *inputs: tree_leaves(function(*inputs))


def _fake(inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs as fake tensors of fixed shapes, if they are not fakes already."""
    if detect_fake_mode(tree_leaves(inputs)) is not None:
        return inputs
    return tree_map_only(Tensor, FakeTensorMode().from_tensor, inputs)


def unknown_shape(line: str, operator: torch._ops.OpOverload) -> DataDependentError:
    """What to say of an operator whose result has the shape that values decide."""
    remedy = _FIXED_SHAPES.get(
        operator.overloadpacket,
        "torch.where(mask, x, 0) keeps all elements and ignores some, torch.topk keeps a fixed number of them",
    )
    return DataDependentError(
        f"{line}: the shape of what {operator} returns depends on the values of a tensor, and a program's shapes are "
        f"fixed; {remedy}"
    )


def _data_dependent(error: RuntimeError) -> DataDependentError | None:
    """What it says of a program, if it is that values decide."""
    called = [
        f"{Path(place.filename).name}:{place.lineno}"
        for place in traceback.extract_tb(error.__traceback__)
        if not place.filename.startswith((*_MACHINERY, __file__))
    ]
    line = called[-1] if called else "in PyTorch"
    if isinstance(error, DynamicOutputShapeException):
        return unknown_shape(line, error.func)
    if isinstance(error, DataDependentOutputException) or any(text in str(error) for text in _READS_MEMORY):
        return DataDependentError(
            f"{line}: Python asks for a value of a tensor (.item(), float(), if, .numpy()), and the program has values "
            "only when it runs; keep it a tensor, and choose between two with torch.where"
        )
    return None


def _check_closed(graph_module: fx.GraphModule) -> None:
    """A graph is a function of its inputs: tracing loses what a tensor from elsewhere holds."""
    for node in graph_module.graph.find_nodes(op="get_attr"):
        read = getattr(graph_module, node.target)
        if isinstance(read, FakeTensor):
            path = next((user.meta["module"] for user in node.users), "") or "the root module"
            raise ForeignTensorError(path, read)


def _check_dense(graph_module: fx.GraphModule) -> None:
    for node in graph_module.graph.nodes:
        for value in tree_leaves(node.meta.get("val")):
            if isinstance(value, Tensor) and value.layout != torch.strided:
                raise GraphError(
                    f"{node.meta['line'] or 'in PyTorch'}: {node.target} gives a sparse tensor; XLA has none"
                )


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Whose operators, one for a whole layer of an LSTM, PyTorch would choose: fake tensors are like those of a CPU."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def _module_paths(module: nn.Module | None) -> Iterator[None]:
    """While this is open, nodes made inside a submodule's forward are annotated with its path."""
    paths = {submodule: path for path, submodule in module.named_modules()} if module is not None else {}
    open_annotations: list[ExitStack] = []

    def enter(submodule: nn.Module, args: Any) -> None:
        stack = ExitStack()
        if submodule in paths:
            stack.enter_context(fx_traceback.annotate({"module": paths[submodule]}))
        open_annotations.append(stack)

    def leave(submodule: nn.Module, args: Any, result: Any) -> None:
        open_annotations.pop().close()

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for stack in reversed(open_annotations):
            stack.close()


class _Lines(TorchFunctionMode):
    """While this is open, nodes are annotated with the line that called PyTorch, `attention.py:88`: the innermost that
    is neither PyTorch's own nor of what shards and lowers."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and (name := _file_name(frame.f_code.co_filename)) is None:
            frame = frame.f_back
        if frame is None:
            return function(*args, **(kwargs or {}))
        with fx_traceback.annotate({"line": f"{name}:{frame.f_lineno}"}):
            return function(*args, **(kwargs or {}))


@functools.cache
def _file_name(path: str) -> str | None:
    """None of a file of PyTorch, or of what shards and lowers."""
    return None if path.startswith(_MACHINERY) else Path(path).name


def _label(graph_module: fx.GraphModule) -> None:
    """Set `meta["module"]` and `meta["line"]` on every node: a gradient's are those of the forward operator with its
    sequence number. Nodes that are labelled already keep their labels."""
    origins: dict[int, dict[str, str]] = {}
    for node in graph_module.graph.nodes:
        origin = node.meta.get("custom", {})
        if "module" in origin and not node.meta.get("autograd_backward"):
            origins.setdefault(node.meta.get("seq_nr", -1), origin)
    for node in graph_module.graph.nodes:
        if "backward" in node.meta:
            continue
        origin = node.meta.get("custom", {})
        if node.meta.get("autograd_backward"):
            # Whatever module's forward is running: that of the operator it is the gradient of. What an
            # autograd.Function runs in its forward is numbered after the Function itself.
            number = node.meta.get("seq_nr", -1)
            origin = origins.get(number, origins.get(number + 1, origin))
        kept = {"val": node.meta["val"]} if "val" in node.meta else {}
        label = {name: origin.get(name, "") for name in ("module", "line")}
        node.meta = {**kept, **label, "backward": bool(node.meta.get("autograd_backward"))}
