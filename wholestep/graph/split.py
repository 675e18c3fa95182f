"""A step graph cut at layer boundaries into pieces that are compiled apart.

Pieces that are alike, but for what they are given, have one fingerprint and can share one executable: with layers of
one structure the number of executables does not grow with their number.
"""

from __future__ import annotations

import dataclasses
import hashlib
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from wholestep.graph.call import call
from wholestep.graph.collectives import GROUP, axis_of
from wholestep.graph.memory import to_host
from wholestep.graph.random import Scope, draws_numbers, is_random
from wholestep.graph.scan import loop
from wholestep.graph.step import graph_module


@dataclass(frozen=True)
class Cut:
    """Where a step is cut.

    Attributes:
        at: `layers`: the forward pass, the backward pass and the update of each layer are pieces, and what lies between
            them; `passes`: the whole forward pass, the whole backward pass and the optimizer are.
        layers_per_piece: how many consecutive layers share a piece.
    """

    at: Literal["layers", "passes"] = "layers"
    layers_per_piece: int = 1


@dataclass(frozen=True, eq=False)
class Piece:
    """Nodes of a graph that are one program.

    Attributes:
        module: placeholders: `inputs`, then the two numbers of each of `scopes`; results: `outputs`.
        inputs: the nodes that it reads from elsewhere.
        outputs: its nodes that are read elsewhere.
        on_host: for each output whether it is left in host memory.
        scopes: of its calls that draw random numbers.
        draws: whether it draws random numbers.
        first_draw: what the numbers of its own draws, those outside of calls, count on from.
        fingerprint: equal for pieces that are alike.
    """

    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    on_host: tuple[bool, ...]
    scopes: tuple[Scope, ...]
    draws: bool
    first_draw: int
    fingerprint: str


@dataclass(frozen=True, eq=False)
class Repeat:
    """A loop over parts of the batch whose body is cut too: it is run from outside, trip by trip.

    Attributes:
        node: of the loop.
        body: what a trip runs.
    """

    node: fx.Node
    body: Plan

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        """The nodes that it reads: carry, what is sliced, constants."""
        return tuple(tree_leaves(self.node.args[1:]))

    @property
    def outputs(self) -> tuple[fx.Node, ...]:
        """The nodes that its results are read as."""
        return tuple(self.node.users)

    @property
    def trips(self) -> int:
        """How often the body runs."""
        return self.node.args[2][0].meta["val"].shape[0]


@dataclass(frozen=True, eq=False)
class Plan:
    """A graph as parts that run one after the other.

    Attributes:
        parts: in order.
        inputs: the graph's placeholders.
        results: the graph's results.
    """

    parts: tuple[Piece | Repeat, ...]
    inputs: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]

    def pieces(self) -> Iterator[Piece]:
        """Every piece, those inside of loops too."""
        for part in self.parts:
            yield from part.body.pieces() if isinstance(part, Repeat) else (part,)


def split(module: fx.GraphModule, cut: Cut) -> Plan:
    """Cut a step's graph. Nodes keep their order, so the parts compute what the graph does."""
    results = tuple(tree_leaves(module.graph.output_node().args[0]))
    read = set(results)
    parts: list[Piece | Repeat] = []
    for section in _sections(module, cut):
        if _is_repeat(section[0], module):
            body = getattr(module, section[0].args[0].target)
            parts.append(Repeat(section[0], split(body, cut)))
        else:
            parts.append(_piece(module, section, read))
    return Plan(tuple(parts), tuple(module.graph.find_nodes(op="placeholder")), results)


def _sections(module: fx.GraphModule, cut: Cut) -> list[list[fx.Node]]:
    """The nodes that compute, in order, those of each piece together."""
    nodes = [n for n in module.graph.nodes if n.op == "call_function" and n.target is not GROUP]
    passes = _passes(nodes)
    sections: list[list[fx.Node]] = []
    kinds: list[Any] = []
    place: dict[fx.Node, int] = {}
    for node in nodes:
        if node.target is operator.getitem:  # belongs to what it takes apart
            place[node] = place[node.args[0]]
            sections[place[node]].append(node)
            continue
        kind: Any = passes[node]
        if _is_repeat(node, module):
            kind = node
        elif cut.at == "layers" and node.target is call:
            kind = ("call", passes[node])
            full = kinds and kinds[-1] == kind and sum(n.target is call for n in sections[-1]) >= cut.layers_per_piece
            if full:
                kinds[-1] = None  # closed
        if not kinds or kinds[-1] != kind:
            sections.append([])
            kinds.append(kind)
        place[node] = len(sections) - 1
        sections[-1].append(node)
    return sections


def _passes(nodes: Sequence[fx.Node]) -> dict[fx.Node, str]:
    """Which pass each node belongs to: what comes before the first gradient, and after the last, are passes too."""
    backward = [i for i, node in enumerate(nodes) if node.meta.get("backward")]
    first, last = (backward[0], backward[-1]) if backward else (len(nodes), len(nodes))
    return {node: "forward" if i < first else "backward" if i <= last else "optimizer" for i, node in enumerate(nodes)}


def _is_repeat(node: fx.Node, module: fx.GraphModule) -> bool:
    """Whether the node is a loop over microbatches, whose body holds layers."""
    if node.target is not loop or not node.kwargs.get("rows"):
        return False
    body = getattr(module, node.args[0].target)
    return any(each.target is call for each in body.graph.nodes)


def _piece(module: fx.GraphModule, section: Sequence[fx.Node], results: set[fx.Node]) -> Piece:
    inside = set(section)
    inputs = list(
        dict.fromkeys(
            source
            for node in section
            for source in node.all_input_nodes
            if source not in inside and source.op != "get_attr" and source.target is not GROUP
        )
    )
    outputs = [
        n for n in section if n in results or any(user not in inside and user.op != "output" for user in n.users)
    ]
    outputs = [node for node in outputs if isinstance(node.meta["val"], Tensor)]
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for i, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"input_{i}")
        copies[node].meta = {"val": node.meta["val"], "module": "", "backward": False}
    scopes: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
    for node in section:
        if node.target is call and "scope" in node.kwargs and draws_numbers(getattr(module, node.args[0].target)):
            scopes[node] = graph.placeholder(f"container_{len(scopes)}"), graph.placeholder(f"layer_{len(scopes)}")

    def copy(node: fx.Node) -> fx.Node:
        if node not in copies:  # a constant: every piece has its own
            for source in node.all_input_nodes:
                copy(source)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        return copies[node]

    first_draw = min((node.meta["draw"].number for node in section if is_random(node)), default=0)
    for node in section:
        copied = copy(node)
        if is_random(node):
            draw = node.meta["draw"]
            copied.meta = {**copied.meta, "draw": dataclasses.replace(draw, number=draw.number - first_draw)}
        if node.target is call and "scope" in node.kwargs:
            rest = {key: value for key, value in node.kwargs.items() if key != "scope"}
            copied.kwargs = {**rest, "scope": scopes[node]} if node in scopes else rest
    graph.output([copies[node] for node in outputs])
    piece = graph_module(module, graph)
    return Piece(
        module=piece,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        on_host=tuple(_is_on_host(node, module) for node in outputs),
        scopes=tuple(node.kwargs["scope"] for node in scopes),
        draws=draws_numbers(piece),
        first_draw=first_draw,
        fingerprint=_fingerprint(piece),
    )


def _is_on_host(node: fx.Node, module: fx.GraphModule) -> bool:
    if node.target is operator.getitem and node.args[0].target is call:
        body = getattr(module, node.args[0].args[0].target)
        return tree_leaves(body.graph.output_node().args[0])[node.args[1]].target is to_host
    return node.target is to_host


def _fingerprint(module: fx.GraphModule) -> str:
    """A digest of what the graph computes: operators, constants, shapes and dtypes."""
    digest = hashlib.sha256()
    number: dict[fx.Node, str] = {}
    for node in module.graph.nodes:
        number[node] = f"%{len(number)}"
        what: Any = node.target if node.op == "call_function" else node.op
        if node.target is GROUP:
            what = axis_of(node)
        elif node.op == "get_attr":
            read = getattr(module, node.target)
            if isinstance(read, fx.GraphModule):
                what = _fingerprint(read)
            elif isinstance(read, Tensor):
                what = (str(read.dtype), read.tolist())
        arguments = "" if node.target is GROUP else fx.map_arg((node.args, node.kwargs), lambda n: number[n])
        values = [(tuple(v.shape), v.dtype) for v in tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]
        digest.update(repr((str(what), repr(arguments), values, node.meta.get("draw"))).encode())
    return digest.hexdigest()
