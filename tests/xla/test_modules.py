"""PyTorch's own modules against eager PyTorch: outputs, the gradient of every parameter and input, and what a module
writes into its buffers."""

from __future__ import annotations

from collections.abc import Callable

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


FLOAT32_ONLY = ("LSTM", "LSTMCell", "GRU", "TransformerEncoderLayer")


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # in eager PyTorch
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_module(name: str, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and name in FLOAT32_ONLY:
        pytest.skip("in bf16 it differs from eager PyTorch by more than the tolerance: docs/status.md")
    torch.manual_seed(0)
    build, shape = MODULES[name]
    module = perturbed(build()).to(dtype)
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    names = [*parameters, *buffers]

    def step(x: Tensor, *state: Tensor) -> list[Tensor]:
        given = [each.detach().clone() for each in state]
        wanted = [each.requires_grad_(True) for each in (x.detach().clone(), *given[: len(parameters)])]
        outputs = tree_leaves(functional_call(module, dict(zip(names, given, strict=True)), (wanted[0],)))
        weights = [torch.arange(y.numel()).sin().to(y.dtype).reshape(y.shape) for y in outputs]
        gradients = torch.autograd.grad(outputs, wanted, weights)
        return [*(y.detach() for y in outputs), *gradients, *given[len(parameters) :]]

    inputs = [torch.randn(shape, dtype=dtype), *(x.detach() for x in (*parameters.values(), *buffers.values()))]
    arrays = [jnp.asarray(x.float().numpy(), carried(x.dtype)) for x in inputs]
    program = GraphFunction(trace(step, inputs))
    results = program(jax.random.key(0) if program.draws else None, *arrays)
    for place, (result, want) in enumerate(zip(results, step(*inputs), strict=True)):
        assert (result.shape, result.dtype) == (tuple(want.shape), carried(want.dtype)), place
        error = relative_error(np.asarray(result, np.float32), want.float().numpy())
        assert error <= TOLERANCE[dtype], f"result {place}: {result} is not {want}"
