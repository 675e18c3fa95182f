"""Joint forward and backward graphs to choose from: of a few operators, and of a layer of a Llama."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest import mock

import torch
from support import OBJECTIVE, fields, tiny_config
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode

from wholestep.graph import partition as partition_module
from wholestep.graph.capture import capture_train_step
from wholestep.graph.intermediates import Intermediates, intermediates
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep, Policy
from wholestep.graph.passes.identities import drop_identities
from wholestep.graph.policies import save_all
from wholestep.graph.trace import gradients, trace
from wholestep.parallel import Mesh, simple_fsdp, simulated_device_mesh


def traced(function: Callable[..., Sequence[Tensor]], *shapes: tuple[int, ...]) -> fx.GraphModule:
    """The graph of a function of float32 tensors of these shapes."""
    with FakeTensorMode():
        return trace(function, [torch.empty(shape) for shape in shapes])


def between_halves(layer: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Intermediates:
    """Of `layer(x, *weights)`, whose result is like x; the shapes are those of its arguments."""

    def run(*tensors: Tensor) -> list[Tensor]:
        inputs = [tensor.detach().requires_grad_() for tensor in tensors[:-1]]
        with torch.enable_grad():
            output = layer(*inputs)
        return [output.detach(), *gradients([output], inputs, tensors[-1:])]

    module = traced(run, *shapes, shapes[0])
    drop_identities(module, {})
    graph = module.graph
    placeholders = list(graph.find_nodes(op="placeholder"))
    return intermediates(graph, placeholders[:1], [], placeholders[-1:], graph.output_node().args[0][1:])


def between_halves_of_llama(policy: Policy = save_all) -> Intermediates:
    """Of a layer, as `partition` sees it."""
    seen: list[Intermediates] = []

    def record(*args: object) -> Intermediates:
        seen.append(intermediates(*args))
        return seen[-1]

    with torch.device("meta"):
        module = tiny_config().build()
    with simulated_device_mesh(Mesh(fsdp=2)) as mesh, mock.patch.object(partition_module, "intermediates", record):
        simple_fsdp(module, mesh)
        capture_train_step(module, OBJECTIVE, AdamW(), fields(4, 16), mesh, layers=Layers(Keep(policy), looped=True))
    (between,) = seen
    return between


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return torch.nn.functional.silu(x @ gate) * (x @ up) @ down


def attention(x: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return torch.softmax(x @ query @ (x @ key).T, -1) @ x


def deep(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = torch.tanh(x @ weight)
    return x


SMALL = {
    "swiglu": (swiglu, (8, 4), (4, 12), (4, 12), (12, 4)),
    "attention": (attention, (16, 4), (4, 4), (4, 4)),
    "deep": (deep, (8, 4), (4, 32), (32, 2), (2, 4)),
}
