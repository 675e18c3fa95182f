"""Operators that PyTorch has kernels of on its own devices only: loss scaling, weight norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from device.reference import numbers, same_on_both
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

pytestmark = pytest.mark.usefixtures("eager_mode")


@pytest.mark.parametrize("foreach", [False, True])
def test_loss_scaling(foreach: bool) -> None:
    def run(device: str) -> Any:
        module = nn.Linear(3, 2)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(numbers(*parameter.shape) / 4)
        module.to(device)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, foreach=foreach)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**8, growth_interval=2)
        results: list[Tensor | float] = []
        for factor in (1.0, 1.0, float("inf"), 1.0, 1.0, 1.0):
            optimizer.zero_grad()
            loss = (module(numbers(4, 3, device=device)).square().mean()) * factor
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            results += [scaler.get_scale(), *(parameter.detach().clone() for parameter in module.parameters())]
        return results

    same_on_both(run)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm(dim: int | None) -> None:
    def run(device: str) -> Any:
        module = nn.Linear(3, 2)
        with torch.no_grad():
            module.weight.copy_(numbers(2, 3) / 4)
            module.bias.copy_(numbers(2))
        module = weight_norm(module, dim=dim).to(device)
        module(numbers(4, 3, device=device)).square().sum().backward()
        return [parameter.grad for parameter in module.parameters()]

    same_on_both(run)
