"""Random draws in a step graph: which of a program's numbers each node draws.

No node holds a state. A program has one key, an input; a node draws from that key, the layer it runs in and its own
number in the layer. So a layer draws the same numbers whether it is laid out, an iteration of a loop or a program of
its own, forward or computed again; and the rows of a batch draw the same however they are split.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from wholestep.errors import GraphError
from wholestep.graph.step import graphs

aten = torch.ops.aten


@dataclass(frozen=True)
class Draw:
    """Which numbers a node draws.

    Attributes:
        position: of its layer among those that the graph holds; 0 outside of layers.
        number: of the node in its layer.
    """

    position: int
    number: int


Scope = tuple[int, int]
"""Where a graph runs: a number for the container of its layers, and the place of its first layer in there."""


def scope_of(container: str, index: int) -> Scope:
    """The scope of a container's layers from this index on; stable from run to run."""
    return zlib.crc32(container.encode()), index


def is_random(node: fx.Node) -> bool:
    """Whether the node draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def draws_numbers(module: fx.GraphModule) -> bool:
    """Whether a node of `module`, or of a graph that it calls, draws random numbers."""
    return any(is_random(node) for each in graphs(module) for node in each.graph.nodes)


def number_draws(nodes: Iterable[fx.Node], position: int = 0) -> None:
    """Give each of these nodes that draws a number of its own, in order."""
    for number, node in enumerate(filter(is_random, nodes)):
        node.meta["draw"] = Draw(position, number)


def _random_between(x: Tensor, low: int, high: int | None, generator: object = None) -> Tensor:
    if high is None:
        raise GraphError(f"{aten.random_}: give both ends of the range")
    return torch.randint_like(x, low, high)


def _write_random_between(x: Tensor, low: int, high: int | None, generator: object = None) -> Tensor:
    return x.copy_(_random_between(x, low, high))


# Operators whose name, `from`, no graph's code can hold.
DECOMPOSITIONS: dict[Any, Callable[..., Tensor]] = {
    getattr(aten.random, "from"): _random_between,
    getattr(aten.random_, "from"): _write_random_between,
}
