"""Complex numbers through capture and lowering, gradients included; and what TPUs lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from support import TOLERANCE, relative_error
from torch import Tensor

from wholestep.errors import LoweringError
from wholestep.graph.trace import trace
from wholestep.xla.chips import CHIPS
from wholestep.xla.function import GraphFunction
from wholestep.xla.lowering import factorization


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary position embedding, with pairs of features as complex numbers."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def filtered(x: Tensor, weight: Tensor) -> Tensor:
    """A global convolution, as Fourier layers have it."""
    return torch.fft.irfft(torch.fft.rfft(x) * torch.complex(weight, weight.cos()), n=x.shape[-1])


def arithmetic(x: Tensor, y: Tensor) -> Tensor:
    z = torch.complex(x, y)
    w = (2 - 1j) * z.conj() / (z + 3) - z.real * 1j + z.imag**2 + z.pow(3).exp() * z.sin()
    return torch.where(w.abs() > 1, w / w.abs(), w.sgn() * w.angle()).sum(0).resolve_conj().log().abs()


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(rotated, [(2, 3, 8), (3, 4)]), (filtered, [(2, 9), (5,)]), (arithmetic, [(4, 5), (4, 5)])],
)
def test_values_and_gradients(function: Callable[..., Tensor], shapes: list[tuple[int, ...]]) -> None:
    inputs = [torch.randn(shape) for shape in shapes]

    def with_gradients(*given: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in given]
        result = function(*leaves)
        weights = torch.linspace(1, 2, result.numel()).view(result.shape)
        return [result.detach(), *torch.autograd.grad((result * weights).sum(), leaves)]

    results = GraphFunction(trace(with_gradients, inputs))(None, *(jax.numpy.asarray(x.numpy()) for x in inputs))
    for result, expected in zip(results, with_gradients(*inputs), strict=True):
        assert relative_error(np.asarray(result), expected.numpy()) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("function", [torch.linalg.eig, torch.linalg.eigvals])
def test_eigenvalues_are_refused_on_tpus(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    monkeypatch.setattr(factorization, "chip_lowered_for", lambda: CHIPS[0])
    x = torch.randn(3, 3)
    with pytest.raises(LoweringError, match="not Hermitian"):
        GraphFunction(trace(function, [x]))(None, jax.numpy.asarray(x.numpy()))
