"""AdamW against `torch.optim.AdamW`, and clipping against `torch.nn.utils`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from wholestep.graph.optimizer import AdamW, clip_factor


def random_state(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """parameter, gradient, first and second moment; gradients over ten orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)
    parameter, grad, first, second = (torch.randn(64, generator=generator) for _ in range(4))
    scale = torch.logspace(-8, 2, 64)
    return parameter, grad * scale, first * scale, (second * scale).square()


def assert_close(value: Tensor, reference: Tensor, terms: Tensor) -> None:
    """Within 1e-6 of each element, relative to the size of the terms whose sum it is."""
    error = (value.double() - reference).abs() / terms
    assert error.max() < 1e-6, f"off by {error.max():.1e}"


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.9, 0.999), (0.0, 0.99)])
@pytest.mark.parametrize("step", [1, 2, 1000])
def test_one_update(step: int, betas: tuple[float, float], weight_decay: float) -> None:
    optimizer = AdamW(betas=betas, weight_decay=weight_decay)
    parameter, grad, first, second = random_state(step)
    if step == 1:
        first, second = torch.zeros_like(first), torch.zeros_like(second)
    reference = torch.nn.Parameter(parameter.double())
    reference.grad = grad.double()
    adamw = torch.optim.AdamW([reference], lr=3e-3, betas=betas, eps=optimizer.eps, weight_decay=weight_decay)
    adamw.state[reference].update(
        {"step": torch.tensor(step - 1.0), "exp_avg": first.double(), "exp_avg_sq": second.double()}
    )
    adamw.step()

    slots = optimizer.update_slots(grad, [first, second])
    result = optimizer.update_parameter(parameter, slots, torch.tensor(3e-3), torch.tensor(float(step)))
    moments = adamw.state[reference]
    assert_close(slots[1], moments["exp_avg_sq"], second + grad.square())
    assert_close(slots[0], moments["exp_avg"], first.abs() + grad.abs())
    assert_close(result, reference.detach(), parameter.abs() + (result - parameter).abs())
    assert result.dtype == slots[0].dtype == torch.float32


def test_slots_are_what_torch_keeps() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    adamw = torch.optim.AdamW([parameter])
    adamw.step()
    assert set(AdamW().slots) == set(adamw.state[parameter]) - {"step"}


def test_an_update_changes_nothing_in_place() -> None:
    state = random_state(0)
    copies = [tensor.clone() for tensor in state]
    parameter, grad, first, second = state
    slots = AdamW().update_slots(grad, [first, second])
    AdamW().update_parameter(parameter, slots, torch.tensor(0.1), torch.tensor(1.0))
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(state, copies, strict=True))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_clipping(scale: float) -> None:
    grad = torch.tensor([3.0, -4.0]) * scale
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = grad.clone()
    norm = torch.nn.utils.clip_grad_norm_([parameter], 2.0)
    torch.testing.assert_close(grad * clip_factor(norm, 2.0), parameter.grad)


def test_without_a_limit_nothing_is_clipped() -> None:
    assert clip_factor(torch.tensor(1e6), None) == 1


def test_the_factor_of_a_norm_of_zero_is_one() -> None:
    assert clip_factor(torch.tensor(0.0), 1.0) == 1
