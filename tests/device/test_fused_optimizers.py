"""`torch.optim` with `fused=True`, against PyTorch's on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from device.reference import same_on_both
from torch import nn

pytestmark = pytest.mark.usefixtures("eager_mode")

CASES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "maximize": (torch.optim.AdamW, {"maximize": True}),
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
}
MODEL = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    moments = [x for of_one in optimizer.state.values() for x in of_one.values() if isinstance(x, torch.Tensor)]
    return [*model.parameters(), *(parameter.grad for parameter in model.parameters()), *moments]


@pytest.mark.parametrize("name", CASES)
def test_steps_are_the_cpus(name: str) -> None:
    optimizer_class, settings = CASES[name]

    def train(device: str) -> Any:
        model = copy.deepcopy(MODEL).to(device)
        optimizer = optimizer_class(model.parameters(), lr=0.01, fused=True, **settings)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for x in torch.randn(4, 8, 4, generator=torch.Generator().manual_seed(0)):
            optimizer.zero_grad()
            model(x.to(device)).square().sum().backward()
            optimizer.step()
            schedule.step()
        return state(model, optimizer)

    same_on_both(train)


def test_a_learning_rate_that_changes_is_no_other_program() -> None:
    model = copy.deepcopy(MODEL).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    model(torch.ones(1, 4, device="tpu")).sum().backward()
    optimizer.step()
    optimizer.step()
    before = torch.tpu.counters().compiles
    for step in range(3):
        optimizer.param_groups[0]["lr"] = 0.02 + step
        optimizer.step()
        torch.tpu.synchronize()
    assert torch.tpu.counters().compiles == before


@pytest.mark.parametrize("overflows", [False, True])
def test_scaled_gradients(overflows: bool) -> None:
    """The optimizer divides by the scale itself, and leaves out a step whose gradients are not finite."""

    def train(device: str) -> Any:
        model = copy.deepcopy(MODEL).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        scaler = torch.amp.GradScaler(device, init_scale=16.0)
        for number, x in enumerate(torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0))):
            optimizer.zero_grad()
            loss = model(x.to(device)).square().sum()
            scaler.scale(loss * float("inf") if overflows and number == 1 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return state(model, optimizer), scaler.get_scale()

    same_on_both(train)
