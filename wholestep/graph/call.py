"""A graph as a part of a step graph that stays apart: a layer's forward or backward pass, or one layer's update.

Calls of one body are lowered in place, one after the other, or each as a program of its own (`graph/split.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import getitem

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._pytree import tree_leaves

from wholestep.graph.random import Scope
from wholestep.graph.trace import record, trace_body


def call(
    body: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], scope: Scope | None = None
) -> tuple[Tensor, ...]:
    """What a call node calls: `body(*inputs)`. `scope` is what the body's random draws depend on; None where it draws
    none or draws as the graph around it does."""
    return tuple(body(*inputs))


def fence(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same values, as something new to the compiler: what is computed from them is not merged with what was
    computed from the values themselves, and does not start before all of them are there."""
    return tuple(values)


def fence_off(nodes: Sequence[fx.Node], place: fx.Node) -> list[fx.Node]:
    """The results of a fence of these nodes, put before `place`. Who uses them is the caller's to say."""
    with place.graph.inserting_before(place):
        fenced = place.graph.call_function(fence, (list(nodes),))
        results = [place.graph.call_function(getitem, (fenced, i)) for i in range(len(nodes))]
    fenced.meta = {**nodes[0].meta, "val": tuple(node.meta["val"] for node in nodes)}
    for node, result in zip(nodes, results, strict=True):
        result.meta = dict(node.meta)
    return results


class SharedCalls:
    """Functions of tensors that are traced once for all calls that are alike."""

    def __init__(self) -> None:
        self._bodies: dict[Hashable, fx.GraphModule] = {}

    def __call__(
        self, key: str | None, function: Callable[[Sequence[Tensor]], list[Tensor]], tensors: Sequence[Tensor]
    ) -> list[Tensor]:
        """`function(tensors)`, as a call of a body that it shares with every call of the same key and with tensors of
        the same shapes and dtypes. Without a key it is traced in place."""
        if key is None:
            return function(tensors)
        layout = (key, *((tuple(tensor.shape), tensor.dtype) for tensor in tensors))
        if layout not in self._bodies:
            with disable_proxy_modes_tracing():
                fakes = [torch.empty_like(tensor) for tensor in tensors]
            self._bodies[layout] = trace_body(lambda *given: function(given), fakes)
        return record_call(self._bodies[layout], tensors)


def record_call(body: fx.GraphModule, inputs: Sequence[Tensor], scope: Scope | None = None) -> list[Tensor]:
    """Put a `call` node with this body into the graph that is being traced; returns what the body would. Calls of one
    body share it."""
    results = [node.meta["val"] for node in tree_leaves(body.graph.output_node().args[0])]
    return record(call, [list(inputs)], results, body, **({} if scope is None else {"scope": scope}))
