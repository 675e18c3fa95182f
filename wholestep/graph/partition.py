"""A joint forward and backward graph -> a forward graph and a backward graph, and what passes between them.

For each intermediate that the gradients need a policy decides: keep it, keep it in host memory, or compute it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, fx

from wholestep.graph.intermediates import find_recomputed, intermediates
from wholestep.graph.memory import to_device, to_host
from wholestep.graph.step import graph_module

aten = torch.ops.aten


class Fate(Enum):
    """What becomes of an intermediate between the forward and the backward pass."""

    SAVE = "save"
    OFFLOAD = "offload"
    RECOMPUTE = "recompute"


Policy = Callable[[fx.Node], Fate]
"""Asked only about nodes that depend on activations and do more than rearrange."""


@dataclass(frozen=True)
class Joint:
    """A layer's forward and backward pass as one graph.

    Attributes:
        module: placeholders: what a layer hands to the next (the carry), parameters, constants, then the carry's
            tangents; results: the new carry, then the gradients of carry, parameters and those constants that have one.
        carry: how many values the carry has.
        parameters: how many parameters there are.
        constants: how many constants; `differentiable` of them, by index, have a gradient.
    """

    module: fx.GraphModule
    carry: int
    parameters: int
    constants: int
    differentiable: tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """The two halves of a joint graph, as bodies of loops over the layers.

    Attributes:
        forward: carry, parameters, constants -> new carry, then what is saved.
        backward: tangents of the carry, gradients of constants so far, then what was saved, parameters, constants ->
            gradients of the carry, of the constants with this layer's added, of the parameters.
        saved: how many values pass from one to the other.
        differentiable: which constants have a gradient.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: int
    differentiable: tuple[int, ...]


def partition(joint: Joint, policy: Policy) -> Partition:
    """Split `joint` in two. The carry that comes in is always kept, on the device or the host as `policy` says; what
    depends on parameters alone (a gathered weight, say) is always made again."""
    graph = joint.module.graph
    order = {node: i for i, node in enumerate(graph.nodes)}
    placeholders = list(graph.find_nodes(op="placeholder"))
    carry = placeholders[: joint.carry]
    parameters = placeholders[joint.carry : joint.carry + joint.parameters]
    constants = placeholders[joint.carry + joint.parameters : -joint.carry]
    tangents = placeholders[-joint.carry :]
    results = list(graph.output_node().args[0])
    outputs, gradients = results[: joint.carry], results[joint.carry :]
    between = intermediates(graph, carry, constants, tangents, gradients)
    fates = {node: policy(node) for node in (*carry, *between.candidates)}
    kept, recomputed = find_recomputed(
        between.wanted, {*carry, *(node for node, fate in fates.items() if fate is not Fate.RECOMPUTE)}
    )
    saved = sorted({*carry, *kept}, key=order.__getitem__)

    forward = _Half(joint.module)
    forward.take([*carry, *parameters, *constants])
    forward.compute(_needed([*outputs, *saved]))
    moved = [forward.move(node, to_host) if fates[node] is Fate.OFFLOAD else forward.copies[node] for node in saved]
    forward_module = forward.finish([*(forward.copies[node] for node in outputs), *moved])

    half = _Half(joint.module)
    half.take(tangents)
    sums = [half.new_input(f"constant_gradient_{i}", constants[i]) for i in joint.differentiable]
    half.take(saved)
    half.take([*parameters, *constants])
    for node in saved:
        if fates[node] is Fate.OFFLOAD:
            half.copies[node] = half.move(node, to_device)
    half.compute(recomputed | between.backward | set(graph.find_nodes(op="get_attr")))
    new = [half.copies[node] for node in gradients]
    middle = joint.carry + joint.parameters
    added = [half.add(total, grad) for total, grad in zip(sums, new[middle:], strict=True)]
    return Partition(
        forward=forward_module,
        backward=half.finish([*new[: joint.carry], *added, *new[joint.carry : middle]]),
        saved=len(saved),
        differentiable=joint.differentiable,
    )


class _Half:
    """A graph under construction from nodes of another."""

    def __init__(self, source: fx.GraphModule) -> None:
        self._source = source
        self._graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}

    def take(self, nodes: list[fx.Node]) -> None:
        """One input for each node."""
        for node in nodes:
            self.copies[node] = self.new_input(node.name, node)

    def new_input(self, name: str, like: fx.Node) -> fx.Node:
        placeholder = self._graph.placeholder(name)
        placeholder.meta = {"val": like.meta["val"], "module": "", "backward": False}
        return placeholder

    def compute(self, nodes: set[fx.Node]) -> None:
        """Copy those of `nodes` that are not there yet, in the source's order."""
        for node in self._source.graph.nodes:
            if node in nodes and node not in self.copies and node.op in ("call_function", "get_attr"):
                self.copies[node] = self._graph.node_copy(node, self.copies.__getitem__)

    def move(self, node: fx.Node, mover: Callable[[Tensor], Tensor]) -> fx.Node:
        return self._call(mover, (self.copies[node],), node)

    def add(self, total: fx.Node, more: fx.Node) -> fx.Node:
        return self._call(aten.add.Tensor, (total, more), total)

    def finish(self, results: list[fx.Node]) -> fx.GraphModule:
        self._graph.output(results)
        return graph_module(self._source, self._graph)

    def _call(self, target: Callable[..., Tensor], args: tuple[fx.Node, ...], like: fx.Node) -> fx.Node:
        node = self._graph.call_function(target, args)
        node.meta = {"val": like.meta["val"], "module": like.meta.get("module", ""), "backward": True}
        return node


def _needed(results: list[fx.Node]) -> set[fx.Node]:
    needed: set[fx.Node] = set()
    stack = list(results)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += node.all_input_nodes
    return needed
