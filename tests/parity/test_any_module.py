"""Modules that do unusual things with their layers: whatever runs the layers, every gradient is eager PyTorch's."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from jax.experimental import pallas as pl
from support import TOLERANCE, KeepGradients, relative_error
from torch import Tensor, nn

from wholestep import jax_op
from wholestep.graph.capture import capture_train_step
from wholestep.graph.objective import Layers
from wholestep.graph.partition import Keep
from wholestep.graph.policies import recompute_all
from wholestep.graph.signature import Field
from wholestep.graph.split import Cut
from wholestep.graph.step import StepGraph
from wholestep.parallel import Mesh, simple_fsdp, simulated_device_mesh
from wholestep.xla.devices import device_mesh
from wholestep.xla.program import Program
from wholestep.xla.split_program import SplitProgram
from wholestep.xla.stacking import stack, unstack, unstacked_values

ROWS, WIDTH, MESH = 8, 8, Mesh(fsdp=2)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class Model(nn.Module):
    def __init__(self, layers: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers or [Layer() for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def hooked() -> nn.Module:
    model = Model()
    for layer in model.layers:
        layer.register_forward_hook(_double)
        layer.register_forward_pre_hook(_halve)
    return model


def _double(module, args, result):
    return result * 2


def _halve(module, args):
    return (args[0] * 0.5,)


def patched_forward() -> nn.Module:
    model = Model()
    for layer in model.layers[1:]:
        layer.forward = lambda x, layer=layer: x - torch.sin(layer.linear(x))
    return model


class ByPosition(Layer):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx = index

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.layer_idx % 2 == 0 else x - 3 * torch.tanh(self.linear(x))


def by_position() -> nn.Module:
    return Model([ByPosition(i) for i in range(4)])


def classes_of_one_name() -> nn.Module:
    def make(activation) -> nn.Module:
        class Block(Layer):
            def forward(self, x: Tensor) -> Tensor:
                return x + activation(self.linear(x))

        return Block()

    return Model([make(activation) for activation in (torch.tanh, torch.sin, torch.relu, torch.sigmoid)])


class WritesIntoArgument(Layer):
    def forward(self, x: Tensor, total: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        total.add_(y)
        return x + y


class Totals(Model):
    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for layer in self.layers:
            x = layer(x, total)
        return x + 2 * total


def writes_into_an_argument() -> nn.Module:
    return Totals([WritesIntoArgument() for _ in range(4)])


class Scaled(Layer):
    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x)) * self.scale


class SetsScales(Model):
    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            layer.scale = 0.5**i
            x = layer(x)
        for layer in self.layers:
            layer.scale = 3.0
        for layer in self.layers:
            x = layer(x)
        return x


def attributes_set_between_calls() -> nn.Module:
    return SetsScales([Scaled() for _ in range(4)])


class Twice(Model):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(super().forward(x) * 0.5)


class Flagged(Layer):
    def forward(self, x: Tensor, flag: object) -> Tensor:
        y = torch.tanh(self.linear(x))
        return x + (2 * y if flag is True else y)


class Flags(Model):
    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x, True if i == 0 else 1)
        return x


def arguments_equal_but_not_alike() -> nn.Module:
    return Flags([Flagged() for _ in range(4)])


class ReturnsNone(Layer):
    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return super().forward(x), None


class ReturnsNumber(Layer):
    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        return super().forward(x), 0.5


class TakesFirst(Model):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        return x


def results_with_none() -> nn.Module:
    return TakesFirst([ReturnsNone() for _ in range(4)])


def results_with_numbers() -> nn.Module:
    return TakesFirst([ReturnsNumber() for _ in range(4)])


class Pairs(Model):
    def forward(self, x: Tensor) -> Tensor:
        for first, second in self.layers:
            x = second(first(x))
        return x


def lists_of_lists() -> nn.Module:
    return Pairs([nn.ModuleList([Layer(), Scaled()]) for _ in range(2)])


class Named(nn.Module):
    """As nanoGPT is laid out."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.ModuleList(Layer() for _ in range(4))
        self.transformer = nn.ModuleDict(
            {"start": nn.Linear(WIDTH, WIDTH), "h": layers, "end": nn.Linear(WIDTH, WIDTH)}
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.transformer.start(x)
        for layer in self.transformer.h:
            x = layer(x)
        return self.transformer.end(x)


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.full((WIDTH,), 0.7))


class Shares(Layer):
    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x)) * self.rotary.factor


def a_shared_buffer() -> nn.Module:
    rotary = Rotary()
    return Model([Shares(rotary) for _ in range(4)])


class TiedToLayer(Model):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.layers[0].linear.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(super().forward(x))


class ReadsLayers(Model):
    def forward(self, x: Tensor) -> Tensor:
        penalty = sum(layer.linear.weight.square().sum() for layer in self.layers)
        return super().forward(x) + 0.1 * penalty


class SetsAux(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        self.aux = y.square().mean(-1, keepdim=True)
        return x + y


class SumsAux(Model):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + sum(layer.aux for layer in self.layers)


def results_left_in_attributes() -> nn.Module:
    return SumsAux([SetsAux() for _ in range(4)])


class Masked(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x)) * self.mask


class SetsMask(Model):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            layer.mask = x > 0
        return super().forward(x)


def tensors_set_as_attributes() -> nn.Module:
    return SetsMask([Masked() for _ in range(4)])


def arrays_as_attributes() -> nn.Module:
    model = Model()
    for layer in model.layers:
        layer.table = np.arange(3)
    return model


class Memory(Layer):
    def forward(self, x: Tensor, *, memory: Tensor) -> Tensor:
        return super().forward(x) * torch.sigmoid(memory)


class Decodes(Model):
    def __init__(self) -> None:
        super().__init__([Memory() for _ in range(4)])
        self.encoder = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.encoder(x)
        for layer in self.layers:
            x = layer(x, memory=memory)
        return x


def _squares(x_ref, out_ref):
    out_ref[...] = x_ref[...] ** 2


def _norm_forward(x: jax.Array, scale: jax.Array, eps: float, *, interpret: bool):
    squares = pl.pallas_call(_squares, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=interpret)(x)
    inverse = jax.lax.rsqrt(squares.mean(-1, keepdims=True) + eps)
    return x * inverse * scale, (x, scale, inverse)


def _norm_backward(residuals, grad: jax.Array, eps: float, *, interpret: bool):
    x, scale, inverse = residuals
    scaled = grad * scale * inverse
    return scaled - x * inverse**2 * (scaled * x).mean(-1, keepdims=True), (grad * x * inverse).sum(0)


@jax_op("test_any_module::norm", forward=_norm_forward, backward=_norm_backward)
def norm(x: jax.Array, scale: jax.Array, eps: float, *, interpret: bool) -> jax.Array:
    return _norm_forward(x, scale, eps, interpret=interpret)[0]


class Normed(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(norm(x, self.scale, 1e-3))


def jax_operators() -> nn.Module:
    return Model([Normed() for _ in range(4)])


MODULES = (
    Model,
    jax_operators,
    hooked,
    patched_forward,
    by_position,
    classes_of_one_name,
    writes_into_an_argument,
    attributes_set_between_calls,
    Twice,
    arguments_equal_but_not_alike,
    results_with_none,
    results_with_numbers,
    lists_of_lists,
    Named,
    a_shared_buffer,
    TiedToLayer,
    ReadsLayers,
    results_left_in_attributes,
    tensors_set_as_attributes,
    arrays_as_attributes,
    Decodes,
)
LOOPABLE = {Model, jax_operators, results_with_none, Named, Decodes}
WAYS = {"unrolled": (False, None), "loop": (True, None), "split": (False, Cut())}


def objective(module: nn.Module, batch: dict[str, Tensor]):
    return module(batch["x"]).square().sum(), torch.ones(()) * batch["x"].shape[0], {}


def captured(module: nn.Module, looped: bool) -> StepGraph:
    batch = {"x": Field((ROWS, WIDTH), torch.float32)}
    with simulated_device_mesh(MESH) as mesh:
        simple_fsdp(module, mesh)
        layers = Layers(Keep(recompute_all), looped)
        return capture_train_step(module, objective, KeepGradients(), batch, mesh, layers=layers)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", MODULES, ids=lambda make: make.__name__)
def test_every_gradient_is_eagers(make, way: str) -> None:
    looped, cut = WAYS[way]
    torch.manual_seed(0)
    eager = make()
    batch = {"x": np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)}
    loss_sum, weight, _ = objective(eager, {"x": torch.from_numpy(batch["x"])})
    (loss_sum / weight).backward()

    with torch.device("meta"):
        module = make()
    own = [layer.__dict__.get("forward") for layer in module.modules()]
    step = captured(module, looped)
    assert [layer.__dict__.get("forward") for layer in module.modules()] == own
    if looped:
        assert bool(step.notes) == (make not in LOOPABLE), step.notes

    devices = device_mesh(MESH)
    program = SplitProgram(step, devices, cut) if cut else Program(step, devices)
    apart = {}
    for value in unstacked_values(step):
        kind, _, name = value.name.partition("/")
        tensor = dict(eager.state_dict(keep_vars=True))[name].detach()
        apart[value.name] = np.zeros(value.shape, np.float32) if kind == "grad" else tensor.numpy()
    state, _ = program(stack(apart, step, devices), program.place_batch(batch), {"learning_rate": 0.0, "step": 1})
    after = unstack(state, step, devices)
    for name, parameter in eager.named_parameters():
        error = relative_error(np.asarray(after[f"grad/{name}"]), parameter.grad.numpy())
        assert error < TOLERANCE[torch.float32], f"gradient of {name} is off by {error:.1e}"
