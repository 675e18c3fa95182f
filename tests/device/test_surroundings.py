"""What the Python of a captured step reads besides tensors, which may change after its third call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from device.test_captured import numbers
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import wholestep
from wholestep.errors import GraphError


class Model(nn.Module):
    """With settings of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LeakyReLU(0.1))
        self.head = nn.Linear(4, 2)
        self.scales = nn.ParameterDict({"a": nn.Parameter(torch.full((2,), 0.5))})
        self.register_buffer("shift", None)
        self.settings = SimpleNamespace(power=2, nested={"factors": [1.0, 2.0]})
        self.state = {"bias": 0.5}
        self.activation = torch.tanh
        self.temperature = 1.0

    def encode(self, x: Tensor) -> Tensor:
        x = self.activation(self.head(self.layers(x))) / self.temperature
        for scale in self.scales.values():
            x = x + scale
        x = self.state["bias"] + (x if self.shift is None else x + self.shift)
        factors = self.settings.nested["factors"]
        return sum(factors) * x.pow(self.settings.power)

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x)


class Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Trainer:
    """A step as a method, of what may be replaced."""

    def __init__(self, by_method: bool) -> None:
        torch.manual_seed(0)
        self.model = Model().to("tpu")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.by_method = by_method

    def step(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = (self.model.encode(x) if self.by_method else self.model(x)).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def loaded(trainer: Trainer) -> None:
    state = trainer.optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.5
    trainer.optimizer.load_state_dict(state)


def double_gradient(parameter: Tensor) -> None:
    parameter.grad.mul_(2)


def double_gradients(optimizer: Any, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            double_gradient(parameter)


CHANGES: dict[str, Callable[[Trainer], Any]] = {
    "mode": lambda trainer: trainer.model.eval(),
    "number": lambda trainer: setattr(trainer.model.layers[2], "negative_slope", 0.9),
    "number of the whole": lambda trainer: setattr(trainer.model, "temperature", 2.0),
    "function": lambda trainer: setattr(trainer.model, "activation", torch.sin),
    "namespace": lambda trainer: setattr(trainer.model.settings, "power", 4),
    "nested": lambda trainer: trainer.model.settings.nested["factors"].append(3.0),
    "entry": lambda trainer: trainer.model.state.update(bias=1.0),
    "layer": lambda trainer: trainer.model.layers.__setitem__(2, nn.ReLU()),
    "more layers": lambda trainer: trainer.model.layers.append(nn.Tanh()),
    "more parameters": lambda trainer: trainer.model.scales.update({"b": nn.Parameter(torch.ones(2, device="tpu"))}),
    "no bias": lambda trainer: setattr(trainer.model.head, "bias", None),
    "buffer": lambda trainer: setattr(trainer.model, "shift", torch.ones(2, device="tpu")),
    "forward": lambda trainer: setattr(trainer.model.head, "forward", lambda x: x[:, :2]),
    "frozen": lambda trainer: trainer.model.head.weight.requires_grad_(False),
    "forward hook": lambda trainer: trainer.model.head.register_forward_hook(lambda module, args, y: y * 2),
    "hook before": lambda trainer: trainer.model.head.register_forward_pre_hook(lambda module, args: args[0] * 2),
    "backward hook": lambda trainer: trainer.model.head.register_full_backward_hook(lambda module, x, y: (x[0] * 2,)),
    "gradient's hook": lambda trainer: trainer.model.head.weight.register_hook(lambda grad: grad * 2),
    "hook after": lambda trainer: trainer.model.head.weight.register_post_accumulate_grad_hook(double_gradient),
    "weight norm": lambda trainer: parametrizations.weight_norm(trainer.model.head),
    "parametrization": lambda trainer: parametrize.register_parametrization(trainer.model.head, "weight", Double()),
    "pruned": lambda trainer: prune.l1_unstructured(trainer.model.head, "weight", 4),
    "learning rate": lambda trainer: trainer.optimizer.param_groups[0].update(lr=0.5),
    "momentum": lambda trainer: trainer.optimizer.param_groups[0].update(momentum=0.9),
    "loaded": loaded,
    "fewer parameters": lambda trainer: trainer.optimizer.param_groups[0]["params"].pop(),
    "group": lambda trainer: trainer.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1, device="tpu"))]}),
    "optimizer's hook": lambda trainer: trainer.optimizer.register_step_pre_hook(double_gradients),
    "optimizer": lambda trainer: setattr(
        trainer, "optimizer", torch.optim.SGD(trainer.model.parameters(), lr=0.01, momentum=0.5)
    ),
    "setting of the step": lambda trainer: setattr(trainer, "by_method", True),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at", [2, 4, 5])
def test_what_is_set_otherwise(change: str, at: int, caplog: pytest.LogCaptureFixture) -> None:
    """Before the call that is compared with the one before, and after it."""

    def run(capture: bool) -> list[Tensor]:
        trainer = Trainer(by_method=at > 2)
        kept = dict(trainer.model.named_parameters())  # so that its storage lives on
        step = trainer.step
        if capture and at == 5:  # the function, of which the trainer is an argument
            step = partial(wholestep.capture_step(Trainer.step), trainer)
        elif capture:
            step = wholestep.capture_step(trainer.step)
        x = torch.randn(5, 4).to("tpu")
        results = []
        for call in range(at + 4):
            if call == at:
                torch.manual_seed(1)
                CHANGES[change](trainer)
            results.append(step(x))
            # Which the step does not read, though it reads others' attributes of these names.
            trainer.backward = globals()["mean"] = call
        gradients = [parameter.grad for parameter in trainer.model.parameters() if parameter.grad is not None]
        return [x.detach().cpu() for x in (*results, *trainer.model.state_dict().values(), *kept.values(), *gradients)]

    for ours, theirs in zip(run(capture=True), run(capture=False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert len([record for record in caplog.records if record.name == "wholestep"]) <= 1


RATE = 0.5


def test_a_number_that_its_function_names_may_change(caplog: pytest.LogCaptureFixture) -> None:
    global RATE
    around = 0.1

    class Trainer:
        rate, calls = 1.0, 0

        def step(self, x: Tensor) -> list[Tensor]:
            return [x * each for each in (RATE, around, self.rate)]

    trainer = Trainer()
    step = wholestep.capture_step(trainer.step)
    x = numbers(3)
    for call in range(12):
        if call == 4:
            RATE = 0.25
        elif call == 8:
            around = 0.2
        elif call == 10:
            trainer.rate = 3.0
        trainer.calls += 1  # nothing that it reads
        for got, rate in zip(step(x), (RATE, around, trainer.rate), strict=True):
            assert torch.equal(got, x * rate), call
    RATE = 0.5
    assert len([record for record in caplog.records if record.name == "wholestep"]) == 3


def test_settings_of_pytorch_are_other_programs() -> None:
    step = wholestep.capture_step(lambda x: x @ x)
    x = numbers(2, 2)
    assert {step(x).dtype for _ in range(4)} == {torch.float32}
    with torch.autocast("tpu", torch.bfloat16):
        assert {step(x).dtype for _ in range(4)} == {torch.bfloat16}
    assert step(x).dtype == torch.float32


def test_a_module_that_counts_its_calls_is_recorded_once_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Counts(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x + 1

    model = Counts()
    step = wholestep.capture_step(lambda x: model(x))
    for _ in range(6):
        step(numbers(2))
    assert model.calls == 3
    assert [record.getMessage() for record in caplog.records] == [
        "a captured step changes `calls` of Counts (from 2 to 3), which later calls do not do"
    ]


@pytest.mark.parametrize(
    "kind", [torch.optim.lr_scheduler.StepLR, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts]
)
def test_a_schedule_is_outside_of_the_step(kind: type) -> None:
    weight = nn.Parameter(torch.ones(2, device="tpu"))
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(1.0, device="tpu"), fused=True)
    schedule = kind(optimizer, 2)

    @wholestep.capture_step
    def step(inside: bool) -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
        if inside:
            schedule.step()

    step(True)
    with pytest.raises(GraphError, match=rf"{__file__}.*{kind.__name__}"):
        step(True)
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"].item())
        before = weight.detach().clone()
        step(False)
        torch.testing.assert_close(before - weight, torch.full((2,), rates[-1], device="tpu"))
        schedule.step()
    assert len(set(rates)) > 1
