"""A schedule in time: what is hidden, what is waited for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from plan.hlo_text import module

from wholestep.plan.costs import Cost, Loop, Schedule
from wholestep.plan.hlo import Instruction
from wholestep.plan.network import Collective, Group
from wholestep.plan.report import Work
from wholestep.plan.schedule import Timeline, lane, timeline
from wholestep.plan.time_model import TimeModel
from wholestep.xla.chips import CHIPS
from wholestep.xla.scope import Origin


def instruction(name: str) -> Instruction:
    return module(f"ROOT %{name} = f32[] parameter(0)").entry.root


def over(*axes: str) -> Collective:
    return Collective(
        "all-gather", Group(size=4, axes=axes, slices=1, chips=4, links=2, hops=2), size=3, whole=4, links=2
    )


def cost(name: str, work: Work = "matmul", *, starts: bool = False, awaits: str | None = None, axis: str = "") -> Cost:
    sends = over(axis) if axis else None
    return Cost(instruction(name), Origin(), work, 0, {}, sends, awaits, starts, on_sparse_core=False)


def gather(name: str, axis: str = "fsdp") -> Cost:
    return cost(name, "collective", starts=True, axis=axis)


def done(name: str, work: Work = "collective") -> Cost:
    return cost(f"{name}-done", work, awaits=name)


def copy(name: str) -> Cost:
    return cost(name, "host", starts=True)


def loop(trips: int, *body: Cost | Loop) -> Loop:
    return Loop(instruction("while"), Origin(), trips, known=True, body=body)


@dataclass(frozen=True)
class Given(TimeModel):
    """Seconds by name."""

    given: tuple[tuple[str, float], ...] = ()

    def seconds(self, cost: Cost) -> float:
        return dict(self.given)[cost.instruction.name]


def run(schedule: Schedule, **seconds: float) -> Timeline:
    return timeline(schedule, Given(CHIPS[0], "likely", tuple(seconds.items())))


def exposed(line: Timeline) -> dict[str, float]:
    """Of a step, all trips together."""
    return {each.cost.instruction.name: each.exposed * each.times for each in line.timed}


@pytest.mark.parametrize(
    ("schedule", "step", "waits"),
    [
        pytest.param([gather("g"), cost("m"), done("g")], 5, 0, id="hidden"),
        pytest.param([gather("g"), cost("n"), done("g")], 3, 2, id="partly hidden"),
        pytest.param([cost("g", "collective", axis="fsdp"), cost("m")], 8, 3, id="synchronous"),
        pytest.param([gather("g"), done("g"), cost("m")], 8, 3, id="awaited at once"),
        pytest.param([cost("m"), gather("g"), cost("n"), done("g")], 8, 2, id="started late"),
    ],
)
def test_a_collective_costs_what_does_not_run_beside_it(schedule: list[Cost], step: float, waits: float) -> None:
    line = run(tuple(schedule), g=3, m=5, n=1)
    assert line.seconds == step
    assert exposed(line)["g"] == waits
    assert sum(line.terms().values()) == step


@pytest.mark.parametrize(("axis", "waits"), [("fsdp", 3), ("replicate", 0)], ids=["one lane", "two lanes"])
def test_transfers_in_one_lane_come_one_after_the_other(axis: str, waits: float) -> None:
    line = run((gather("g"), gather("h", axis), cost("m"), done("g"), done("h")), g=4, h=4, m=5)
    assert exposed(line) == {"g": 0, "h": waits, "m": 5}
    spans = {span.name: (span.lane, span.start, span.end) for span in line.spans()}
    assert spans["g"] == ("ICI fsdp", 0, 4)
    assert spans["h"] == (f"ICI {axis}", 4 if waits else 0, 8 if waits else 4)


def test_a_copy_to_the_host_disturbs_no_collective() -> None:
    line = run((copy("c"), gather("g"), cost("m"), done("g"), done("c", "host")), c=6, g=5, m=5)
    assert exposed(line) == {"m": 5, "g": 0, "c": 1}
    assert line.terms() == {"matmul": 5, "host": 1, "collective": 0}


def test_every_trip_waits_for_what_its_own_trip_does_not_hide() -> None:
    line = run((cost("n"), loop(10, gather("g"), cost("m"), done("g")), cost("last")), n=1, g=7, m=5, last=2)
    assert exposed(line) == {"n": 1, "g": 20, "m": 50, "last": 2}
    assert line.seconds == 73
    (drawn,) = line.loops
    assert (drawn.start, drawn.end, drawn.trips) == (1, 8, 10)
    assert line.moments["last"] == 10, "the folded step has one trip"


def test_what_the_next_trip_waits_for_is_waited_for_at_the_end_of_the_trip() -> None:
    line = run((loop(4, cost("wait", awaits="g of the trip before"), gather("g"), cost("m")),), wait=0, g=7, m=5)
    assert exposed(line)["g"] == 4 * 2
    assert line.seconds == 4 * 7


@pytest.mark.parametrize(("trips", "waits"), [(1, 95), (10, 50), (40, 0)])
def test_what_started_before_a_loop_goes_on_beside_all_its_trips(trips: int, waits: float) -> None:
    line = run((copy("c"), loop(trips, cost("m")), done("c", "host")), c=100, m=5)
    assert exposed(line) == {"c": waits, "m": 5 * trips}


def test_what_is_in_a_lane_before_a_loop_does_not_delay_each_trip() -> None:
    body = (copy("k"), cost("m"), done("k", "host"))
    line = run((copy("c"), loop(10, *body), done("c", "host")), c=100, k=5, m=5)
    assert exposed(line) == {"k": 0, "m": 50, "c": 50}


def test_loops_in_loops_multiply() -> None:
    line = run((loop(3, loop(4, cost("m")), cost("n")),), m=2, n=1)
    assert line.seconds == 3 * (4 * 2 + 1)
    assert [(each.trips, each.start, each.end) for each in line.loops] == [(4, 0, 2), (3, 0, 3)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (gather("g"), "ICI fsdp"),
        (cost("g", "matmul", axis="fsdp"), "compute"),
        (copy("c"), "host"),
        (cost("c", "copy", starts=True), "copies"),
        (cost("c", "copy"), "compute"),
    ],
)
def test_lanes(found: Cost, expected: str) -> None:
    assert lane(found) == expected
