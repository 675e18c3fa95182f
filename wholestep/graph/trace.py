"""A Python function over tensors -> an FX graph of ATen operators, each labelled with the module it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, fx, nn
from torch._decomp import core_aten_decompositions
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from wholestep.errors import GraphError
from wholestep.graph.step import copy_graph, graphs

aten = torch.ops.aten

# Operators that PyTorch would decompose into something that XLA runs worse than a direct lowering: the losses and
# the embedding's gradient would become scatters.
_LOWERED_WHOLE = (
    aten.nll_loss_forward.default,
    aten.nll_loss_backward.default,
    aten.embedding_dense_backward.default,
)


def trace(function: Callable[..., Any], inputs: Sequence[Any], module: nn.Module | None = None) -> fx.GraphModule:
    """Run `function(*inputs)` on fake tensors and record its ATen operators.

    Args:
        function: pure; its result is a tree of tensors, which becomes the graph's flat outputs.
        inputs: trees of fake tensors; the graph has one placeholder for each leaf, in order.
        module: where given, the nodes made while a submodule's forward runs, and those made by their gradients, get
            that submodule's path as `meta["module"]`.
    """
    table = {op: rule for op, rule in core_aten_decompositions().items() if op not in _LOWERED_WHOLE}
    with fx_traceback.preserve_node_meta(), _module_paths(module):
        graph_module = make_fx(_flat(function), decomposition_table=table, tracing_mode="fake")(*inputs)
    graph_module = copy_graph(graph_module)  # flat placeholders, whatever tree the inputs were
    for each in graphs(graph_module):
        label(each)
    _check_pure(graph_module)
    return graph_module


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
    return lambda *inputs: torch.utils._pytree.tree_leaves(function(*inputs))


def _check_pure(graph_module: fx.GraphModule) -> None:
    """A graph is a function of its inputs' values: tracing loses what a write does to the other views of its tensor,
    and what a tensor from elsewhere holds."""
    for each in graphs(graph_module):
        for node in each.graph.find_nodes(op="get_attr"):
            if isinstance(getattr(each, node.target), FakeTensor):
                path = next((user.meta["module"] for user in node.users), "") or "the root module"
                raise GraphError(f"{path} reads a tensor that it was not given (a looped layer's result, for example)")
    writes = {
        f"  {node.target}: in {node.meta['module'] or 'the root module'}"
        for each in graphs(graph_module)
        for node in each.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    }
    if writes:
        raise GraphError("these operators write in place; use their other forms:\n" + "\n".join(sorted(writes)))


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


def label(graph_module: fx.GraphModule) -> None:
    """Set `meta["module"]` on every node: a gradient's is that of the forward operator with its sequence number. Nodes
    that are labelled already keep their label."""
    path_of: dict[int, str] = {}
    for node in graph_module.graph.nodes:
        path = node.meta.get("custom", {}).get("module")
        if path is not None and not node.meta.get("autograd_backward"):
            path_of.setdefault(node.meta.get("seq_nr", -1), path)
    for node in graph_module.graph.nodes:
        if "backward" in node.meta:
            continue
        path = node.meta.get("custom", {}).get("module")
        if path is None and node.meta.get("autograd_backward"):
            number = node.meta.get("seq_nr", -1)
            # What an autograd.Function runs in its forward is numbered after the Function itself.
            path = path_of.get(number, path_of.get(number + 1))
        kept = {"val": node.meta["val"]} if "val" in node.meta else {}
        node.meta = {**kept, "module": path or "", "backward": bool(node.meta.get("autograd_backward"))}
