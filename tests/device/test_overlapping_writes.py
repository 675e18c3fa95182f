"""Writes into a part of a tensor of what it holds elsewhere, in every way to run them: XLA writes some in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import wholestep


def shifts(x: Tensor) -> Tensor:
    x[:, 1:] = x[:, :-1].clone()
    x[:, 0] = 1
    return x


def shifts_rows(x: Tensor) -> Tensor:
    x[1:] = x[:-1].clone()
    x[0] = x[1:].sum(0)
    return x


def adds_its_neighbour(x: Tensor) -> Tensor:
    x[:, 1:] = x[:, 1:] + x[:, :-1]
    x[0] = x[1] * 2
    return x


def moves_a_corner(x: Tensor) -> Tensor:
    x[1:3, 1:3] = x[:2, :2] * 2
    x[0] = x[1] * 2
    return x


def stencil(x: Tensor) -> Tensor:
    for _ in range(3):
        x[1:-1, 1:-1] = x[1:-1, 1:-1] + 0.1 * (x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2])
    return x


def swaps_and_shifts(x: Tensor) -> Tensor:
    x[[0, 1]] = x[[1, 0]]
    x[:, 1:] = x[:, :-1].clone()
    x[2] += x[1]
    return x


def history(x: Tensor) -> Tensor:
    for _ in range(3):
        newest = x.sum(1, keepdim=True) * 0.1
        x[:, 1:] = x[:, :-1].clone()
        x[:, :1] = newest
    return x


OVERLAPPING = [shifts, shifts_rows, adds_its_neighbour, moves_a_corner, stencil, swaps_and_shifts, history]


@pytest.mark.parametrize("write", OVERLAPPING, ids=lambda write: write.__name__)
@pytest.mark.parametrize("mode", ["immediate", "deferred"])
def test_eager(write: Callable[[Tensor], Tensor], mode: str) -> None:
    torch.tpu.eager_mode = mode
    try:
        results = step(write, torch.arange(16.0).to("tpu"))
    finally:
        torch.tpu.eager_mode = "immediate"
    compare(results, write)


@pytest.mark.parametrize("write", OVERLAPPING, ids=lambda write: write.__name__)
def test_captured(write: Callable[[Tensor], Tensor]) -> None:
    captured = wholestep.capture_step(lambda x: step(write, x))
    for _ in range(4):
        compare(captured(torch.arange(16.0).to("tpu")), write)


@pytest.mark.parametrize("write", OVERLAPPING, ids=lambda write: write.__name__)
def test_compiled(write: Callable[[Tensor], Tensor]) -> None:
    compiled = torch.compile(lambda x: write((x + 3).view(4, 4)), backend="wholestep")
    compare((compiled(torch.arange(16.0)),), write)


def step(write: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """What is written, and a gradient of it."""
    leaf = (x * 1).requires_grad_()
    result = write((leaf + 3).view(4, 4))
    return (result, *torch.autograd.grad(result.square().sum(), leaf))


def compare(results: tuple[Tensor, ...], write: Callable[[Tensor], Tensor]) -> None:
    """With eager PyTorch, as far as there are results."""
    for one, other in zip(results, step(write, torch.arange(16.0)), strict=False):
        torch.testing.assert_close(one.detach().cpu(), other.detach())
