"""What a node of a graph costs: floating-point operations, bytes moved, seconds; from the shapes of fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from wholestep.graph.intermediates import FREE
from wholestep.graph.scan import loop
from wholestep.graph.step import StepGraph

aten = torch.ops.aten

# Element-wise in XLA, though PyTorch does not tag them so.
_ELEMENTWISE = frozenset(
    {
        aten._to_copy.default,
        aten.arange.start_step,
        aten.cat.default,
        aten.full.default,
        aten.scalar_tensor.default,
    }
)


@dataclass(frozen=True)
class Rates:
    """What a device can do at best.

    Attributes:
        flops_per_second: of matrix products, in the dtype they run in.
        hbm_bytes_per_second: to and from its own memory, together.
        host_bytes_per_second: to the host's memory, or from it; 0 where nothing can be moved there.
    """

    flops_per_second: float
    hbm_bytes_per_second: float
    host_bytes_per_second: float


def flops(node: fx.Node) -> int:
    """Floating-point operations of matrix products and convolutions, 2 for a multiplication with its addition; 0 for
    every other operator, whose time is that of its memory. By the formulas of `torch.utils.flop_counter`, to which
    custom operators can add theirs (`register_flop_formula`)."""
    inside, trips = _body(node)
    if inside is not None:
        return trips * sum(map(flops, inside.graph.nodes))
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 0
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    return int(formula(*args, **kwargs, out_val=node.meta["val"]))


def size(node: fx.Node) -> int:
    """Bytes of the result, of all of them together if it has several."""
    results = [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
    return sum(value.numel() * value.element_size() for value in results)


def bytes_moved(node: fx.Node) -> int:
    """Bytes read from and written to the device's memory.

    XLA fuses an element-wise operator with the element-wise operators and the reductions that read its result; where
    all that read it are such, its result is neither written nor read. Rearrangements are fused too and move nothing.
    """
    inside, trips = _body(node)
    if inside is not None:
        return trips * sum(map(bytes_moved, inside.graph.nodes))
    if node.op != "call_function" or node.target in FREE:
        return 0
    read = sum(size(source) for source in node.all_input_nodes if _is_written(_rearranged(source)))
    return read + (size(node) if _is_written(node) else 0)


def seconds(node: fx.Node, rates: Rates) -> float:
    """The time a node takes at best: that of its arithmetic or of its memory traffic, whichever is longer (the roofline
    of Williams, Waterman and Patterson, 2009). Time on the links between devices is not in it."""
    inside, trips = _body(node)
    if inside is not None:
        return trips * sum(seconds(each, rates) for each in inside.graph.nodes)
    return max(flops(node) / rates.flops_per_second, bytes_moved(node) / rates.hbm_bytes_per_second)


def seconds_to_keep(node: fx.Node, rates: Rates) -> float:
    """The time that keeping a result on the device takes: to write and to read what would otherwise stay inside of a
    fusion (see `bytes_moved`); nothing for a result that is written anyway."""
    return 0.0 if _is_written(node) else 2 * size(node) / rates.hbm_bytes_per_second


def step_flops(step: StepGraph) -> int:
    """FLOPs, as `flops` counts them, of one device's step: loop bodies as often as they run."""
    return sum(times * flops(node) for node, times in step_nodes(step.module))


def step_nodes(module: fx.GraphModule, times: int = 1) -> Iterator[tuple[fx.Node, int]]:
    """The nodes of a graph, and of what its loops and calls run in place of those, with how often each runs."""
    for node in module.graph.nodes:
        inside, trips = _body(node)
        if inside is None:
            yield node, times
        else:
            yield from step_nodes(inside, times * trips)


def _body(node: fx.Node) -> tuple[fx.GraphModule | None, int]:
    """The graph that a node runs, if it runs one, and how often."""
    first = node.args[0] if node.op == "call_function" and node.args else None
    if not isinstance(first, fx.Node) or first.op != "get_attr":
        return None, 0
    module = getattr(node.graph.owning_module, first.target)
    if not isinstance(module, fx.GraphModule):
        return None, 0
    return module, node.args[2][0].meta["val"].shape[0] if node.target is loop else 1


def _rearranged(node: fx.Node) -> fx.Node:
    """What it is whose elements a rearrangement shows."""
    while node.op == "call_function" and node.target in FREE:
        node = node.all_input_nodes[0]
    return node


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """What reads a result, as it is or rearranged."""
    for user in node.users:
        if user.target in FREE:
            yield from _readers(user)
        else:
            yield user


def _is_written(node: fx.Node) -> bool:
    return not _is_elementwise(node) or not all(_fuses_what_it_reads(reader) for reader in _readers(node))


def _is_elementwise(node: fx.Node) -> bool:
    return node.target in _ELEMENTWISE or torch.Tag.pointwise in getattr(node.target, "tags", ())


def _fuses_what_it_reads(node: fx.Node) -> bool:
    return _is_elementwise(node) or torch.Tag.reduction in getattr(node.target, "tags", ())
