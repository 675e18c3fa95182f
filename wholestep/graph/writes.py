"""Operators that write in place -> operators that return what would have been written.

A traced graph is a function of values; a write, though, also changes what the written tensor's views hold, and what the
tensor holds that it is a view of. PyTorch's functionalization knows which: the graph is traced once more under it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import (
    PythonKeyTracer,
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from wholestep.errors import GraphError

_LABELS: dict[str, Any] = {"module": "", "line": "", "backward": False}


def remove_writes(graph_module: fx.GraphModule, decompositions: Mapping[Any, Callable[..., Any]]) -> fx.GraphModule:
    """The graph without writes in place; the same one, if it has none. Bodies of loops and calls stay as they are.

    What is written into an input is what the graph itself reads of it from then on; who gave the input sees nothing.

    Args:
        graph_module: traced and labelled.
        decompositions: what it was traced with.

    Raises:
        GraphError: an operator writes that is not PyTorch's own; all of them, with the modules they are in.
    """
    writes = [node for node in graph_module.graph.nodes if _writes(node)]
    if not writes:
        return graph_module
    refused = {
        f"  {node.target}: in {node.meta.get('module') or 'the root module'}" for node in writes if not _is_run(node)
    }
    if refused:
        raise GraphError("these operators write in place; use their other forms:\n" + "\n".join(sorted(refused)))

    def functional(*inputs: Tensor) -> list[Tensor]:
        return _Retrace(graph_module).run(*inputs)

    inputs = [node.meta["val"] for node in graph_module.graph.find_nodes(op="placeholder")]
    # What autograd and autocast did is in the graph already.
    with disable_proxy_modes_tracing(), torch.no_grad(), torch._C._DisableAutocast():
        return make_fx(functional, decomposition_table=dict(decompositions), tracing_mode="fake")(*inputs)


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _is_run(node: fx.Node) -> bool:
    """Whether the node may be a view or a write, or hands one on; all others only take values and return new ones."""
    return node.target is operator.getitem or getattr(node.target, "namespace", None) in ("aten", "prims")


class _Retrace(fx.Interpreter):
    """Runs PyTorch's operators, and puts everything else - loops, calls, collectives, kernels - into the new graph as
    it is. New nodes have the labels of those that they come from."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        mode = get_proxy_mode()
        assert mode is not None and isinstance(mode.tracer, PythonKeyTracer), "nothing is being traced"
        self.tracer = mode.tracer
        for node in module.graph.find_nodes(op="get_attr"):
            setattr(self.tracer.root, node.target, getattr(module, node.target))

    def run_node(self, node: fx.Node) -> Any:
        last = next(iter(reversed(self.tracer.graph.nodes)), None)
        if node.op == "output" or _is_run(node):
            with _functionalization():
                result = super().run_node(node)
        else:
            result = tree_map_only(Tensor, torch._to_functional_tensor, self._keep(node))
        for new in itertools.takewhile(lambda each: each is not last, reversed(self.tracer.graph.nodes)):
            new.meta.update({label: node.meta.get(label, _LABELS[label]) for label in _LABELS})
        return result

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        return tree_map(_synchronized, tree_leaves(args))

    def _keep(self, node: fx.Node) -> Any:
        """The node in the new graph; returns its tensors, or its proxy where it stands for something else."""
        if node.op == "placeholder":
            return next(self.args_iter)
        args, kwargs = tree_map_only(Tensor, _synchronized, self.fetch_args_kwargs_from_env(node))
        args, kwargs = tree_map(self.tracer.unwrap_proxy, (args, kwargs))
        proxy = self.tracer.create_proxy(node.op, node.target, args, kwargs, name=node.name)
        like = getattr(self.module, node.target) if node.op == "get_attr" else node.meta.get("val")
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(like)):
            return proxy
        with disable_proxy_modes_tracing():
            fakes = tree_map_only(Tensor, lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype), like)
        return track_tensor_tree(fakes, proxy, constant=None, tracer=self.tracer)


def _synchronized(value: Any) -> Any:
    """What a tensor holds, all writes into it included; of the trace, not of functionalization."""
    if not isinstance(value, Tensor):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value)


@contextmanager
def _functionalization() -> Iterator[None]:
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()
