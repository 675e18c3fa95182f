"""PyTorch's own modules against eager PyTorch: outputs, the gradient of every parameter and input, and what a module
writes into its buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import TOLERANCE, relative_error
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from wholestep.graph.trace import trace
from wholestep.xla.dtypes import carried
from wholestep.xla.function import GraphFunction

Step: TypeAlias = Callable[..., list[Tensor]]

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LSTM": (lambda: nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True), (3, 4, 5)),
    "LSTM with projection": (lambda: nn.LSTM(5, 4, proj_size=3), (4, 3, 5)),
    "GRU": (lambda: nn.GRU(5, 4, num_layers=2), (4, 3, 5)),
    "RNN": (lambda: nn.RNN(5, 4, nonlinearity="relu", bidirectional=True), (4, 3, 5)),
    "LSTMCell": (lambda: nn.LSTMCell(5, 4), (3, 5)),
    "GRUCell": (lambda: nn.GRUCell(5, 4), (3, 5)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(5), (8, 5)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3, momentum=0.3), (4, 3, 5, 6)),
    "BatchNorm2d, evaluated": (lambda: nn.BatchNorm2d(3).eval(), (4, 3, 5, 6)),
    "BatchNorm1d, evaluated": (lambda: nn.BatchNorm1d(3).eval(), (4, 3, 7)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 6), (3, 6, 4, 5)),
    "LayerNorm": (lambda: nn.LayerNorm(6), (3, 4, 6)),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 7, 8)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), (2, 4, 5, 6)),
    "MaxPool2d after Conv2d": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2)), (2, 2, 8, 8)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (5, 3, 8)),
}


def perturbed(module: nn.Module) -> nn.Module:
    """With parameters, and running statistics, that are not all zeros and ones."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data += 0.1 + 0.2 * torch.rand_like(tensor)
    return module


DRAWS = 5


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # in eager PyTorch
@pytest.mark.parametrize("name", MODULES)
def test_in_float32(name: str) -> None:
    [(results, inputs, step)] = draws(name, torch.float32, 1)
    for place, (result, want) in enumerate(zip(results, step(*inputs), strict=True)):
        assert (result.shape, result.dtype) == (tuple(want.shape), carried(want.dtype)), place
        assert error(result, want) <= TOLERANCE[torch.float32], f"result {place}: {result} is not {want}"


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", MODULES)
def test_in_bfloat16(name: str) -> None:
    """Against float64, with what eager PyTorch is off by allowed on top: it rounds elsewhere, and where one rounding
    turns a ReLU off, neither is near the other. A draw in which that happens is not the median."""
    ours, eager = [], []
    for results, inputs, step in draws(name, torch.bfloat16, DRAWS):
        exact = step(*(x.double() if x.is_floating_point() else x for x in inputs))
        ours.append([error(result, want) for result, want in zip(results, exact, strict=True)])
        eager.append([error(result.float(), want) for result, want in zip(step(*inputs), exact, strict=True)])
    excess = np.median(ours, axis=0) - np.median(eager, axis=0)
    assert excess.max() <= TOLERANCE[torch.bfloat16], excess


def error(result: jax.Array | Tensor, want: Tensor) -> float:
    return relative_error(np.asarray(result, np.float32), want.float().numpy())


def draws(name: str, dtype: torch.dtype, count: int) -> Iterator[tuple[list[jax.Array], list[Tensor], Step]]:
    """What the program gives for random parameters and inputs, these inputs, and what it was made from: outputs, the
    gradients of all inputs and parameters, and buffers as they are afterwards."""
    build, shape = MODULES[name]
    program: GraphFunction | None = None
    for seed in range(count):
        torch.manual_seed(seed)
        module = perturbed(build()).to(dtype)
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        step = partial(_step, module, len(parameters), [*parameters, *buffers])
        inputs = [torch.randn(shape, dtype=dtype), *(x.detach() for x in (*parameters.values(), *buffers.values()))]
        program = program or GraphFunction(trace(step, inputs))
        arrays = [jnp.asarray(x.float().numpy(), carried(x.dtype)) for x in inputs]
        yield program(jax.random.key(0) if program.draws else None, *arrays), inputs, step


def _step(module: nn.Module, parameters: int, names: list[str], x: Tensor, *state: Tensor) -> list[Tensor]:
    given = [each.detach().clone() for each in state]
    wanted = [each.requires_grad_(True) for each in (x.detach().clone(), *given[:parameters])]
    outputs = tree_leaves(functional_call(module, dict(zip(names, given, strict=True)), (wanted[0],)))
    # Rounded to bf16 in every dtype, so that all have the same ones.
    weights = [torch.arange(y.numel()).sin().bfloat16().to(y.dtype).reshape(y.shape) for y in outputs]
    gradients = torch.autograd.grad(outputs, wanted, weights)
    return [*(y.detach() for y in outputs), *gradients, *given[parameters:]]
