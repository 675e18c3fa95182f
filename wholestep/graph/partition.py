"""A joint forward and backward graph -> a forward graph and a backward graph, and what passes between them.

For each intermediate that the gradients need a policy decides: keep it, keep it in host memory, or compute it again.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from wholestep.graph.budget import Budget, plan
from wholestep.graph.call import fence
from wholestep.graph.fates import Fate, Policy
from wholestep.graph.intermediates import FREE, find_recomputed, intermediates
from wholestep.graph.memory import to_device, to_host
from wholestep.graph.random import is_random
from wholestep.graph.step import graph_module

aten = torch.ops.aten


@dataclass(frozen=True)
class Joint:
    """A layer's forward and backward pass as one graph.

    Attributes:
        module: placeholders: inputs, parameters, tangents of the outputs that have one; results: outputs, then the
            gradients of `differentiable`.
        inputs: how many.
        parameters: how many.
        outputs: how many.
        carried: the inputs, by index, that are this layer's own; the others are there for the backward pass anyway.
        differentiable: the inputs and, counted on, the parameters that have a gradient.
    """

    module: fx.GraphModule
    inputs: int
    parameters: int
    outputs: int
    carried: tuple[int, ...]
    differentiable: tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """The two halves of a joint graph.

    Attributes:
        forward: carried inputs, parameters, other inputs -> outputs, then what is saved.
        backward: tangents, what was saved, parameters, other inputs -> gradients of `differentiable`.
        saved: how many values pass from one to the other.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: int


@dataclass(frozen=True)
class Keep:
    """What the backward pass of a layer finds kept.

    Attributes:
        policy: of activations, or what they may take in all. Carried inputs are always kept, on the device or the host
            as it says.
        gathered: whether weights as they were gathered are kept, or gathered again from their shards.
    """

    policy: Policy | Budget
    gathered: bool = False

    def share(self, layers: int, of: int) -> Keep:
        """The same for this many of a number of layers, which share a budget equally."""
        if not isinstance(self.policy, Budget):
            return self
        return dataclasses.replace(self, policy=Budget(self.policy.limit * layers // of, self.policy.rates))


def partition(joint: Joint, keep: Keep, fenced: bool) -> Partition:
    """Split `joint` in two.

    Args:
        joint: what to split.
        keep: what passes from the forward to the backward half.
        fenced: whether the compiler will see both halves side by side, so that it would merge what is computed twice
            unless the backward half's inputs were fenced off. (Two loops are apart anyway.)
    """
    graph = joint.module.graph
    order = {node: i for i, node in enumerate(graph.nodes)}
    placeholders = list(graph.find_nodes(op="placeholder"))
    inputs = placeholders[: joint.inputs]
    parameters = placeholders[joint.inputs : joint.inputs + joint.parameters]
    tangents = placeholders[joint.inputs + joint.parameters :]
    carried = [inputs[i] for i in joint.carried]
    constants = [node for node in inputs if node not in carried]
    results = list(graph.output_node().args[0])
    outputs, gradients = results[: joint.outputs], results[joint.outputs :]
    random = [node for node in graph.nodes if is_random(node)]
    between = intermediates(graph, carried, [*constants, *random], tangents, gradients)
    if isinstance(keep.policy, Budget):
        fates = plan(between, keep.policy)
    else:
        fates = {node: keep.policy(node) for node in (*carried, *between.candidates)}
    # Chosen again from numbers that were rounded otherwise, it could be another choice than the forward pass's.
    fates |= {node: Fate.SAVE for node in between.candidates if _is_choice(node) and fates[node] is Fate.RECOMPUTE}
    if keep.gathered:
        fates |= dict.fromkeys(between.weights, Fate.SAVE)
    kept, recomputed = find_recomputed(
        between.wanted, {*carried, *(node for node, fate in fates.items() if fate is not Fate.RECOMPUTE)}
    )
    saved = sorted({*carried, *kept}, key=order.__getitem__)

    forward = _Half(joint.module)
    forward.take([*carried, *parameters, *constants])
    forward.compute(_needed([*outputs, *saved]))
    moved = [forward.move(node, to_host) if fates[node] is Fate.OFFLOAD else forward.copies[node] for node in saved]
    forward_module = forward.finish([*(forward.copies[node] for node in outputs), *moved])

    half = _Half(joint.module)
    half.take([*tangents, *saved, *parameters, *constants])
    for node in saved:
        if fates[node] is Fate.OFFLOAD:
            half.copies[node] = half.move(node, to_device)
    if fenced and any(node.target not in FREE for node in recomputed):
        # Apart, so that weights can be gathered before the tangents are there. Tangents with activations, so that
        # nothing is computed again before it is needed.
        half.fence(parameters)
        half.fence([*tangents, *saved, *constants])
    half.compute(recomputed | between.backward | set(graph.find_nodes(op="get_attr")))
    return Partition(forward_module, half.finish([half.copies[node] for node in gradients]), len(saved))


def _is_choice(node: fx.Node) -> bool:
    return node.target is operator.getitem and node.args[1] == 1 and node.args[0].target is aten.topk.default


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

    def fence(self, nodes: list[fx.Node]) -> None:
        if nodes:
            fenced = self._graph.call_function(fence, ([self.copies[node] for node in nodes],))
            fenced.meta = {"val": tuple(node.meta["val"] for node in nodes), "module": "", "backward": True}
            for i, node in enumerate(nodes):
                self.copies[node] = self._call(operator.getitem, (fenced, i), node)

    def finish(self, results: list[fx.Node]) -> fx.GraphModule:
        self._graph.output(results)
        return graph_module(self._source, self._graph)

    def _call(self, target: Callable[..., Tensor], args: tuple[Any, ...], like: fx.Node) -> fx.Node:
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
