"""A compiled step in time: its instructions one after the other, what started earlier beside them, and who waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from wholestep.plan.costs import Cost, Loop, Schedule
from wholestep.plan.network import Collective
from wholestep.plan.report import Loop as DrawnLoop
from wholestep.plan.report import Span, Work
from wholestep.plan.time_model import TimeModel

COMPUTE, SPARSE_CORE, COPIES, HOST = "compute", "SparseCore", "copies", "host"


@dataclass(frozen=True, eq=False)
class Timed:
    """A cost in time.

    Attributes:
        cost: of what.
        times: how often it occurs in a step.
        start, end: folded seconds, the first time.
        exposed: seconds in which the device does nothing but this, the first time.
        waits: whether it goes on beside other work.
    """

    cost: Cost
    times: int
    start: float
    end: float
    exposed: float
    waits: bool


@dataclass
class Timeline:
    """Attributes:
    seconds: of a step.
    timed: everything that takes time, in order of its start.
    loops: where they lie in the folded step.
    moments: name of a scheduled instruction -> folded seconds at which it has run.
    """

    seconds: float = 0.0
    timed: list[Timed] = field(default_factory=list)
    loops: list[DrawnLoop] = field(default_factory=list)
    moments: dict[str, float] = field(default_factory=dict)

    def terms(self) -> dict[Work, float]:
        """Seconds of a step by what the device does or waits for; they add up to the step."""
        terms: dict[Work, float] = {}
        for each in self.timed:
            terms[each.cost.work] = terms.get(each.cost.work, 0.0) + each.exposed * each.times
        return dict(sorted(terms.items(), key=lambda term: -term[1]))

    def spans(self) -> tuple[Span, ...]:
        return tuple(
            Span(
                lane=lane(each.cost),
                start=each.start,
                end=each.end,
                work=each.cost.work,
                name=each.cost.instruction.name,
                module=each.cost.origin.module,
                line=each.cost.origin.line,
                trips=each.times,
                exposed=each.exposed,
            )
            for each in self.timed
        )


def lane(cost: Cost) -> str:
    """Which part of the machine is busy with it."""
    if cost.collective is not None and cost.work == "collective":
        return network_lane(cost.collective)
    if cost.work == "host":
        return HOST
    if cost.on_sparse_core:
        return SPARSE_CORE
    return COPIES if cost.starts else COMPUTE


def network_lane(collective: Collective) -> str:
    group = collective.group
    return f"{group.network} {'+'.join(group.axes) or 'other'}"


def timeline(schedule: Schedule, model: TimeModel) -> Timeline:
    """Run the schedule. Instructions of the core take their time one after the other. What is started goes on in its
    lane, after what was started there before; what waits for it waits until its end. Transfers in one lane share it,
    those in different lanes do not disturb each other. A loop's first trip stands for all: what goes on when the loop
    begins does not delay it, and goes on beside all its trips; what is not awaited in a trip is at its end."""
    line = Timeline()
    _Run(model, line).run(schedule, 1)
    line.timed.sort(key=lambda each: each.start)
    return line


@dataclass
class _Run:
    model: TimeModel
    line: Timeline
    now: float = 0.0  # folded
    free: dict[str, float] = field(default_factory=dict)
    under_way: dict[str, tuple[Cost, float, float]] = field(default_factory=dict)

    def run(self, schedule: Schedule, times: int) -> None:
        for each in schedule:
            if isinstance(each, Loop):
                self._loop(each, times)
            else:
                self._cost(each, times)
            self.line.moments[each.instruction.name] = self.now

    def _cost(self, cost: Cost, times: int) -> None:
        if cost.awaits is not None:
            start = self.under_way.pop(cost.awaits, None)
            if start is not None:
                self._finish(*start, times)
            return
        seconds = self.model.seconds(cost)
        if cost.starts:
            begins = max(self.now, self.free.get(lane(cost), 0.0))
            self.free[lane(cost)] = begins + seconds
            self.under_way[cost.instruction.name] = cost, begins, begins + seconds
            return
        self._passes(cost, self.now, self.now + seconds, seconds, times, waits=False)

    def _finish(self, cost: Cost, begins: float, ends: float, times: int) -> None:
        self._passes(cost, begins, ends, max(0.0, ends - self.now), times, waits=True)

    def _passes(self, cost: Cost, start: float, end: float, exposed: float, times: int, waits: bool) -> None:
        self.line.timed.append(Timed(cost, times, start, end, exposed, waits))
        self.now += exposed
        self.line.seconds += exposed * times

    def _loop(self, loop: Loop, times: int) -> None:
        under_way, free, begin = self.under_way, self.free, self.now
        self.under_way, self.free = {}, {}
        self.run(loop.body, times * loop.trips)
        for started in self.under_way.values():
            self._finish(*started, times * loop.trips)
        further = (loop.trips - 1) * (self.now - begin)  # trips, which are not in the folded step
        self.under_way = {
            name: (cost, begins, max(begins, ends - further)) for name, (cost, begins, ends) in under_way.items()
        }
        self.free = {where: ends - further for where, ends in free.items()}
        self.line.loops.append(DrawnLoop(start=begin, end=self.now, trips=loop.trips, module=loop.origin.module))
