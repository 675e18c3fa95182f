"""The learning rate's factor, by values computed by hand."""

from __future__ import annotations

import itertools

import pytest

from wholestep.graph.schedule import Schedule


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # 2 steps of warm-up, then 8 down to 0.1: cos gives (1 + cos(pi * progress)) / 2 of what is above 0.1.
        (Schedule(warmup_steps=2), {1: 0.5, 2: 1.0, 4: 0.86819805, 6: 0.55, 8: 0.23180195, 10: 0.1}),
        (Schedule(warmup_steps=2, decay="linear"), {1: 0.5, 2: 1.0, 4: 0.775, 6: 0.55, 10: 0.1}),
        (Schedule(warmup_steps=4, decay="linear", final_fraction=0.0), {1: 0.25, 4: 1.0, 7: 0.5, 10: 0.0}),
        (Schedule(warmup_steps=2, decay="constant"), {1: 0.5, 2: 1.0, 3: 1.0, 10: 1.0}),
        (Schedule(decay="linear", final_fraction=0.0), {1: 0.9, 5: 0.5, 10: 0.0}),
        (Schedule(decay="constant"), {1: 1.0, 10: 1.0}),
        (Schedule(warmup_steps=10), {1: 0.1, 10: 1.0}),
        (Schedule(warmup_steps=20), {1: 0.05, 10: 0.5}),
    ],
)
def test_values(schedule: Schedule, expected: dict[int, float]) -> None:
    assert {step: schedule.factor(step, 10) for step in expected} == pytest.approx(expected)


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_rises_then_falls_and_stays_at_the_end(decay) -> None:
    schedule = Schedule(warmup_steps=5, decay=decay)
    factors = [schedule.factor(step, 40) for step in range(1, 41)]
    assert all(a < b for a, b in itertools.pairwise(factors[:5]))
    assert all(a > b for a, b in itertools.pairwise(factors[4:]))
    assert schedule.factor(41, 40) == schedule.factor(100, 40) == pytest.approx(0.1)


def test_one_step() -> None:
    assert Schedule().factor(1, 1) == pytest.approx(0.1)
    assert Schedule(warmup_steps=1).factor(1, 1) == 1.0
