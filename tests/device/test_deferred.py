"""Deferred mode: what makes a recording run, what is compiled, and what errors say."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device.reference import assert_close, numbers
from torch import Tensor, nn

import wholestep
from wholestep.device.operator import OperatorProgram
from wholestep.errors import ConfigError
from wholestep.xla.lowering import matmul


@pytest.fixture(autouse=True)
def _deferred() -> Iterator[None]:
    torch.tpu.eager_mode = "deferred"
    torch.tpu.counters().reset()
    yield
    torch.tpu.eager_mode = "immediate"
    torch.tpu.recording_bound = 10_000


READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "print": str,
    "if": lambda x: bool(x[0, 0] > 0),
    "tolist": lambda x: x.tolist(),
    "copy to the CPU": lambda x: torch.empty(2, 3).copy_(x),
    "synchronize": lambda x: torch.tpu.synchronize(),
    "flush": lambda x: wholestep.flush(),
    "to_jax": lambda x: wholestep.to_jax(x),
    "the mode": lambda x: setattr(torch.tpu, "eager_mode", "immediate"),
    "a shape that depends on values": lambda x: x.nonzero(),
    "index": lambda x: [1, 2, 3][x.abs().argmin() * 0],
}


@pytest.mark.parametrize("name", READS)
def test_reads_run_the_recording(name: str) -> None:
    x = numbers(2, 3, device="tpu")
    y = (x + 1) * 2
    counters = torch.tpu.counters()
    assert counters.operators >= 2 and counters.programs == 0
    READS[name](y)
    assert counters.programs >= 1 and sum(counters.flushes.values()) == counters.programs
    assert torch.equal(y.cpu(), (numbers(2, 3) + 1) * 2)


def test_reasons_are_counted() -> None:
    x = numbers(2, 3, device="tpu")
    (x + 1).cpu()
    y = x + 1
    wholestep.flush()
    z = x + 1
    torch.tpu.synchronize()
    flushes = torch.tpu.counters().flushes
    assert flushes["a value is read"] == flushes["wholestep.flush"] == flushes["synchronize"] == 1
    wholestep.flush()  # nothing is recorded
    assert sum(flushes.values()) == 3
    assert torch.equal(y, z)


def test_the_bound() -> None:
    torch.tpu.recording_bound = 5
    x = numbers(2, 3, device="tpu")
    for _ in range(12):
        x = x + 1
    assert torch.tpu.counters().programs == 2
    assert torch.equal(x.cpu(), numbers(2, 3) + 12)


def test_results_that_nobody_reads_are_not_made() -> None:
    x = numbers(2, 3, device="tpu")
    for _ in range(3):
        x + 1
    kept = x * 2
    wholestep.flush()
    assert torch.tpu.counters().programs == 1
    assert torch.equal(kept.cpu(), numbers(2, 3) * 2)


def test_equal_recordings_are_compiled_once() -> None:
    x = numbers(2, 3, device="tpu")
    for i in range(4):
        ((x * (i + 0.5)).exp() + i).cpu()
    counters = torch.tpu.counters()
    assert (counters.programs, counters.compiles, counters.cache_hits) == (4, 1, 3)
    (x[0] * 2).exp().cpu()
    assert counters.compiles == 2


def test_a_training_loop_is_compiled_once() -> None:
    def train(device: str, steps: int) -> list[Tensor]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(numbers(*parameter.shape) / 4)
        module.to(device)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
        losses = []
        for step in range(steps):
            x = (numbers(5, 3) + step / 10).to(device)
            loss = F.cross_entropy(module(x), torch.arange(5, device=device) % 2)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            compiles.append(torch.tpu.counters().compiles)
        return [torch.tensor(losses), *module.parameters()]

    compiles: list[int] = []
    got = train("tpu", 7)
    assert compiles[-1] == compiles[2] <= 3, compiles
    for one, other in zip(got, train("cpu", 7), strict=True):
        assert_close(one, other)


def test_a_loop_that_reads_nothing_runs_a_program_a_step() -> None:
    layer = nn.Linear(3, 2).to("tpu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9)
    x, losses = numbers(5, 3).to("tpu"), []
    for _ in range(6):
        optimizer.zero_grad()
        losses.append(layer(x).square().sum())
        losses[-1].backward()
        optimizer.step()
    counters = torch.tpu.counters()
    assert counters.flushes["an optimizer's step ends"] == 6 and counters.recordings >= 6
    assert counters.compiles <= 3 and counters.fused == counters.operators
    assert losses[0].item() > losses[-1].item()


def test_dropout_differs_from_step_to_step_without_a_compilation() -> None:
    x = torch.ones(64).to("tpu")
    masks = [F.dropout(x).cpu() for _ in range(3)]
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2])
    assert torch.tpu.counters().compiles == 1


def test_errors_name_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise MemoryError

    x = numbers(2, 3, device="tpu")
    line = inspect.currentframe().f_lineno + 1
    y = x * 2
    with monkeypatch.context() as context, pytest.raises(MemoryError) as caught:
        context.setattr(OperatorProgram, "run", fails)
        y.cpu()
    assert caught.value.__notes__[0] == f"recorded at {__file__}:{line}"
    # What does not need the value that cannot be made goes on.
    assert torch.equal((numbers(2, 3, device="tpu") + 1).cpu(), numbers(2, 3) + 1)


def test_views_across_a_flush() -> None:
    def run(device: str) -> list[Tensor]:
        base = numbers(4, 6, device=device)
        view = base.t()[1:3]
        view.add_(1)
        wholestep.flush()
        view.mul_(2)
        other = base[0]
        other.zero_()
        first = base.clone()
        wholestep.flush()
        base.add_(view[0, 0].clone())
        other.sub_(1)
        return [base, view, other, first]

    for one, other in zip(run("tpu"), run("cpu"), strict=True):
        assert torch.equal(one.cpu(), other)


def test_modes_may_change_at_any_time() -> None:
    x = numbers(4, 6, device="tpu").requires_grad_()
    y = (x * x)[1:]
    torch.tpu.eager_mode = "immediate"
    y.mul_(2)
    torch.tpu.eager_mode = "deferred"
    y.sum().backward()
    wanted = 4 * numbers(4, 6)
    wanted[0] = 0
    assert torch.equal(x.grad.cpu(), wanted)
    with pytest.raises(ConfigError, match="immediate, deferred"):
        torch.tpu.eager_mode = "lazy"
    assert torch.tpu.eager_mode == "deferred"


def test_many_versions_of_one_tensor() -> None:
    x = torch.zeros(3, device="tpu")
    seen = []
    for i in range(4):
        x[i % 3] += i + 1
        seen.append(x.clone())
        x.mul_(1)
    assert [each.tolist() for each in seen] == [[1, 0, 0], [1, 2, 0], [1, 2, 3], [5, 2, 3]]
    assert torch.tpu.counters().programs <= 2


WRITES: dict[str, Callable[[Tensor, int, Tensor], Any]] = {
    "row": lambda x, i, y: x.__setitem__(i, y),
    "number": lambda x, i, y: x[i].fill_(2.5),
    "column": lambda x, i, y: x[:, i].copy_(y[:4]),
    "sum": lambda x, i, y: x[i].add_(y),
    "sum with the row before": lambda x, i, y: x[i].add_(x[i - 1]),
    "a product with itself": lambda x, i, y: x[i].mul_(x[i]),
    "every other": lambda x, i, y: x[i, ::2].sub_(y[::2]),
    "in two steps": lambda x, i, y: (x[i].mul_(2), x[i].add_(y)),
    "out": lambda x, i, y: torch.add(y, 1, out=x[i]),
    "clipped": lambda x, i, y: x[i].clamp_(-1, 1),
}


@pytest.mark.parametrize("name", WRITES)
def test_where_a_part_begins_is_no_other_program(name: str) -> None:
    def run(device: str) -> Tensor:
        x, y = numbers(4, 6, device=device), numbers(7, device=device)[1:]
        for i in (1, 2, 3, 0):
            WRITES[name](x, i, y)
            torch.tpu.synchronize()
            if i == 1:
                compiles.append(torch.tpu.counters().compiles)
        compiles.append(torch.tpu.counters().compiles)
        return x

    compiles: list[int] = []
    assert_close(run("tpu"), run("cpu"))
    # A part that is read is copied first, unless it begins where its storage does: that is another program.
    assert compiles[1] <= compiles[0] + (name in ("sum with the row before", "a product with itself"))


@pytest.mark.parametrize("wrong", ["shape", "dtype"])
def test_arguments_that_do_not_fit_are_an_error_at_once(wrong: str) -> None:
    x = torch.ones(2, 4, device="tpu") + 1
    cache = torch.zeros(2, 3, 4, device="tpu")
    with pytest.raises(RuntimeError, match=r"index_put|bitwise_and"):
        if wrong == "shape":
            cache[:, torch.tensor([1], device="tpu")] = x
        else:
            x & 1
    assert x.sum().item() == 16  # what else was recorded is not lost


@pytest.mark.usefixtures("eager_mode")
def test_products_are_as_precise_as_is_set_when_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, 3, device="tpu")
    lowered: list[str] = []
    monkeypatch.setattr(matmul, "precision", lambda: lowered.append(torch.get_float32_matmul_precision()))
    for setting in ("highest", "medium", "medium"):
        torch.set_float32_matmul_precision(setting)
        y = x @ x
        torch.set_float32_matmul_precision("high")
        y.cpu()
    torch.set_float32_matmul_precision("highest")
    assert [each for each, _ in itertools.groupby(lowered)] == ["highest", "medium"]
