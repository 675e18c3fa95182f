"""A module's own initialization as graphs: a small program for each parameter and buffer, run where its shard lives."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, functionalize

from wholestep.errors import GraphError
from wholestep.graph.random import is_random, number_draws
from wholestep.graph.step import ancestors
from wholestep.graph.trace import trace


@dataclass(frozen=True)
class Initializer:
    """How one parameter or buffer gets its first value.

    Attributes:
        module: a graph without inputs whose one output is the value, of the tensor's own (global, unpadded) shape.
        index: which of the module's tensors it is; its random draws are keyed by it.
        fingerprint: equal for two tensors whose graphs differ in nothing but the index.
    """

    module: fx.GraphModule
    index: int
    fingerprint: Hashable


def capture_initializers(module: nn.Module) -> dict[str, Initializer]:
    """Name of each parameter and buffer -> its initializer.

    What is captured is `module.init_weights()`, or, for a module without one, `reset_parameters()` of every submodule
    that has it. Call this before the module is sharded; it may be on meta. Tensors that nothing initializes start at
    zero.

    Raises:
        GraphError: two tensors share one random draw, so that they cannot be initialized apart.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def initialize() -> list[Tensor]:
        fresh = {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in tensors.items()}
        functional_call(_Initialization(module), {f"module.{name}": tensor for name, tensor in fresh.items()}, ())
        return list(fresh.values())

    with FakeTensorMode():
        graph = trace(functionalize(initialize, remove="mutations_and_views"), []).graph
    initializers: dict[str, Initializer] = {}
    drawn_by: dict[fx.Node, str] = {}
    for index, (name, result) in enumerate(zip(tensors, graph.output_node().args[0], strict=True)):
        needed = ancestors(result)
        for node in needed:
            if is_random(node):
                other = drawn_by.setdefault(node, name)
                if other != name:
                    raise GraphError(f"{other} and {name} are initialized from one random draw; draw for each")
        ordered = [node for node in graph.nodes if node in needed]
        initializers[name] = Initializer(_subgraph(ordered, result), index, _fingerprint(ordered))
    return initializers


class _Initialization(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self) -> None:
        init_weights = getattr(self.module, "init_weights", None)
        if init_weights is not None:
            init_weights()
            return
        for submodule in self.module.modules():
            reset_parameters = getattr(submodule, "reset_parameters", None)
            if reset_parameters is not None:
                reset_parameters()


def _subgraph(nodes: list[fx.Node], result: fx.Node) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    number_draws(graph.nodes)  # each tensor's draws on their own, so that those that are made alike share a program
    graph.output([copies[result]])
    return fx.GraphModule(result.graph.owning_module, graph)


def _fingerprint(nodes: list[fx.Node]) -> Hashable:
    number = {node: f"%{i}" for i, node in enumerate(nodes)}
    return tuple(
        (str(node.target), repr(fx.map_arg((node.args, node.kwargs), number.__getitem__)), str(node.meta.get("val")))
        for node in nodes
    )
