"""What of a layer's forward pass its backward pass reads, and what it must compute again for what it does not find."""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

aten = torch.ops.aten

# Rearrangements: their result costs a copy to keep and nothing to make again, so what they rearrange is kept instead.
FREE = frozenset(
    {
        operator.getitem,
        aten.expand.default,
        aten.permute.default,
        aten.slice.Tensor,
        aten.split_with_sizes.default,
        aten.squeeze.dims,
        aten.unsqueeze.default,
        aten.view.default,
    }
)


@dataclass(frozen=True)
class Intermediates:
    """What can pass from the forward to the backward half of one graph.

    Attributes:
        inputs: what enters the layer; always kept.
        backward: the nodes that depend on tangents.
        wanted: the other nodes that those read, and gradients that depend on no tangent.
        candidates: what may be kept beside the inputs, in the graph's order: what depends on activations, does more
            than rearrange, and would otherwise be computed again.
        weights: the same of what depends on parameters alone.
    """

    inputs: tuple[fx.Node, ...]
    backward: frozenset[fx.Node]
    wanted: tuple[fx.Node, ...]
    candidates: tuple[fx.Node, ...]
    weights: tuple[fx.Node, ...]


def intermediates(
    graph: fx.Graph,
    inputs: Sequence[fx.Node],
    others: Sequence[fx.Node],
    tangents: Sequence[fx.Node],
    gradients: Iterable[object],
) -> Intermediates:
    """Look at a joint forward and backward graph.

    Args:
        graph: the whole of it.
        inputs: the placeholders of what enters the layer.
        others: where other activations come from: placeholders of what is there for the backward pass anyway, and
            random draws.
        tangents: placeholders of the gradients that come in.
        gradients: those of the results that are the backward pass's.
    """
    backward = _reached_from(tangents, graph)
    activations = _reached_from([*inputs, *others], graph) - backward
    wanted = {source: None for node in graph.nodes if node in backward for source in node.all_input_nodes}
    wanted |= {node: None for node in gradients if isinstance(node, fx.Node)}
    for node in backward:
        wanted.pop(node, None)
    _, recomputed = find_recomputed(wanted, frozenset(inputs))
    keepable = [node for node in graph.nodes if node in recomputed and _is_worth_keeping(node)]
    parameters = set(graph.find_nodes(op="placeholder")) - {*inputs, *others, *tangents}
    weights = _reached_from(list(parameters), graph) - activations - backward
    return Intermediates(
        inputs=tuple(inputs),
        backward=frozenset(backward),
        wanted=tuple(wanted),
        candidates=tuple(node for node in keepable if node in activations),
        weights=tuple(node for node in keepable if node in weights),
    )


def find_recomputed(wanted: Iterable[fx.Node], kept: Container[fx.Node]) -> tuple[set[fx.Node], set[fx.Node]]:
    """What it takes to have `wanted` where `kept` and the graph's placeholders are at hand: which of `kept` are read,
    and which nodes are computed again."""
    read: set[fx.Node] = set()
    recomputed: set[fx.Node] = set()
    stack = list(wanted)
    while stack:
        node = stack.pop()
        if node in kept:
            read.add(node)
        elif node not in recomputed and node.op == "call_function":
            recomputed.add(node)
            stack += node.all_input_nodes
    return read, recomputed


def _is_worth_keeping(node: fx.Node) -> bool:
    if node.target is operator.getitem:  # one result of an operator that has several
        return node.all_input_nodes[0].target not in FREE
    return node.target not in FREE and isinstance(node.meta.get("val"), Tensor)


def _reached_from(sources: Sequence[fx.Node], graph: fx.Graph) -> set[fx.Node]:
    reached = set(sources)
    for node in graph.nodes:
        if node.op == "call_function" and not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
    return reached
