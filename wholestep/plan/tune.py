"""The search for the settings of a recipe that train fastest on a topology and fit.

Compiling takes seconds to minutes and the space has thousands of candidates, so the search is coordinate-wise. From the
recipe's own settings, the groups of dimensions (memory, mesh, each kernel, flags) take turns: in its turn, a group
gives the most promising of those candidates that differ from the best one so far in this group only, and that one is
compiled whole. Groups hardly depend on each other, except for what memory goes to (rows, microbatches, what layers
keep), which is why these are varied together. It ends when no turn has a candidate left, or with the budget.

The most promising is, of those that arithmetic expects to fit, the one whose bound is fastest; of others the one with
the smallest memory. Memory is expected by its bound, times the most that a compiled figure was of its own bound. Not
compiled at all is

- what does not fit by its bound, or whose bound is slower than the best one is expected to be;
- what has as many rows in a microbatch and as many bytes by its bound as one that was compiled and does not fit, where
  the two are alike but for the memory group; with other flags too, if that one was over the memory by a tenth. This is
  inferred, not certain.

No candidate may take more than a share of the budget (`SHARE`); one that does is left for a run with a larger budget.

The search itself is deterministic: run again, it goes the same way over what was tried and on from there.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from wholestep.errors import DeviceMemoryError, WholestepError
from wholestep.plan.arithmetic import Bound, bound
from wholestep.plan.isolated import CompilerError, CompilerTimeoutError, compile_isolated
from wholestep.plan.job import Job
from wholestep.plan.planner import plan
from wholestep.plan.space import Candidate, Space
from wholestep.plan.trials import Trial, Trials, key_of
from wholestep.xla.topologies import topology_chip

Progress = Callable[[float, int], None]
Measure = Callable[[Job, Progress, float], Trial]
"""A job, whom to tell of seconds and bytes of memory, seconds to give up after -> a trial without a key. Raises as
`compile_isolated`."""

SHARE = 0.25
FLAGS_CHANGE = 1.1
"""How many times as much memory a program may need with other flags."""
TOO_LARGE = "cannot fit, by arithmetic"
TOO_SLOW = "cannot be faster than the best, by arithmetic"
LARGER = "larger than one that was compiled and does not fit"
LEFT = "left when the search moved on or ended"


class Watcher(Protocol):
    """Who is told how far the search is."""

    def compiling(self, overrides: tuple[str, ...]) -> Progress:
        """What is compiled next; the answer is told how it goes."""

    def tried(self, trial: Trial, best: Trial | None, known: bool) -> None:
        """What came of it, or is `known` from before; and the best so far."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a search came to.

    Attributes:
        trials: in the order in which they were tried.
        best: the fastest that fits; None if none does.
        own: of the recipe's own settings; None if they were not compiled.
        settings: all that has to be set for `best`.
        size: candidates in the space.
        left_out: why -> how many of those that the search came by were not compiled.
        stopped: `budget`, `interrupted`, or empty if the search came to its end.
    """

    trials: tuple[Trial, ...]
    best: Trial | None
    own: Trial | None
    settings: tuple[str, ...]
    size: int
    left_out: dict[str, int]
    stopped: str

    @property
    def nearest(self) -> Trial | None:
        """Of what was compiled, what is over the memory by least."""
        return min((it for it in self.trials if it.needed), key=lambda it: it.needed or 0, default=None)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        trials = {name: it and it.to_dict() for name, it in (("best", self.best), ("own", self.own))}
        return {**asdict(self), **trials, "trials": [it.to_dict() for it in self.trials]}


def predict(job: Job, progress: Progress, timeout: float) -> Trial:
    """Compile a job's step and read memory and time off it."""
    report = plan(job, compile_isolated(job, progress, timeout))
    speed = report.speed
    return Trial(
        needed=report.memory.needed,
        available=report.memory.available,
        low=speed.low,
        expected=speed.expected,
        high=speed.high,
        tokens_per_second_per_chip=speed.tokens_per_second_per_chip,
    )


def tune(
    space: Space,
    known: Trials,
    budget: float,
    watcher: Watcher,
    measure: Measure = predict,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Search until the end, the budget's end, or an interrupt; whatever was tried by then is in `known`.

    Args:
        space: what to search.
        known: what was tried before; what is tried now is added.
        budget: seconds.
        watcher: who is told.
        measure: what compiles a candidate.
        clock: of seconds.

    Raises:
        WholestepError: the recipe itself, with nothing changed, is not one that can be compiled.
    """
    return _Search(space, known, budget, watcher, measure, clock).run()


class _OutOfTimeError(Exception):
    pass


class _Search:
    def __init__(
        self,
        space: Space,
        known: Trials,
        budget: float,
        watcher: Watcher,
        measure: Measure,
        clock: Callable[[], float],
    ) -> None:
        self.space, self.known, self.watcher = space, known, watcher
        self.measure, self.clock = measure, clock
        self.budget, self.deadline = budget, clock() + budget
        self.bounds: dict[Candidate, Bound] = {}
        self.trials: dict[Candidate, Trial] = {}
        chip = topology_chip(space.job.topology)
        self.available = chip.hbm_bytes // chip.devices  # until the compiler says how much of it is a program's

    def run(self) -> Tuned:
        stopped = ""
        try:
            self._go()
        except _OutOfTimeError:
            stopped = "budget"
        except KeyboardInterrupt:
            stopped = "interrupted"
        best = self._best()
        return Tuned(
            trials=tuple(self.trials.values()),
            best=None if best is None else self.trials[best],
            own=self.trials.get(self.space.base),
            settings=() if best is None else self.space.settings(best),
            size=self.space.size,
            left_out=dict(Counter(self._why_not(each) or LEFT for each in self.bounds if each not in self.trials)),
            stopped=stopped,
        )

    def _go(self) -> None:
        if self._why_not(self.space.base) is None:
            self._try(self.space.base)
        idle = 0
        for group in itertools.cycle(self.space.groups):
            candidate = self._most_promising(group)
            idle = idle + 1 if candidate is None else 0
            if candidate is not None:
                self._try(candidate)
            elif idle == len(self.space.groups):
                return

    def _most_promising(self, group: str) -> Candidate | None:
        """Of those around the best one so far; while none fits, around the one with the smallest bound in memory."""
        centre = self._best() or min(self.bounds, key=lambda it: self.bounds[it].needed)
        left = [each for each in self.space.neighbours(centre, group) if each not in self.trials]
        left = [each for each in left if self._why_not(each) is None]
        over = [trial.needed / self._bound(it).needed for it, trial in self._relatives(centre) if trial.needed]
        ratio = max(over, default=1.0)

        def order(candidate: Candidate) -> tuple[bool, float]:
            its = self._bound(candidate)
            expected = its.needed * ratio
            fits = expected <= self.available
            return not fits, -its.tokens_per_second_per_chip if fits else expected

        return min(left, key=order, default=None)

    def _try(self, candidate: Candidate) -> None:
        job = self.space.job_of(candidate)
        key = key_of(job)
        known = self.known.get(key)
        trial = known or replace(self._measured(candidate, job), key=key, overrides=candidate.overrides)
        if known is None and not trial.timed_out:
            self.known.add(trial)
        self.trials[candidate] = trial
        self.available = trial.available or self.available
        best = self._best()
        self.watcher.tried(trial, None if best is None else self.trials[best], known is not None)

    def _measured(self, candidate: Candidate, job: Job) -> Trial:
        left = self.deadline - self.clock()
        if left <= 0:
            raise _OutOfTimeError
        try:
            return self.measure(job, self.watcher.compiling(candidate.overrides), min(left, SHARE * self.budget))
        except CompilerTimeoutError as error:
            if self.clock() >= self.deadline:
                raise _OutOfTimeError from error
            return Trial(error=str(error), timed_out=True)
        except DeviceMemoryError as error:
            return Trial(needed=error.needed, available=error.available, error=str(error))
        except WholestepError as error:
            if candidate == self.space.base and not isinstance(error, CompilerError):
                raise
            return Trial(error=str(error))

    def _best(self) -> Candidate | None:
        fitting = [each for each, trial in self.trials.items() if trial.fits]
        return max(fitting, key=lambda each: self.trials[each].speed, default=None)

    def _bound(self, candidate: Candidate) -> Bound:
        if candidate not in self.bounds:
            self.bounds[candidate] = bound(self.space.job_of(candidate))
        return self.bounds[candidate]

    def _why_not(self, candidate: Candidate) -> str | None:
        """Why it need not be compiled; None if it is worth it."""
        its, best = self._bound(candidate), self._best()
        if its.needed > self.available:
            return TOO_LARGE
        if best is not None and its.tokens_per_second_per_chip <= self.trials[best].speed:
            return TOO_SLOW
        for other, trial in self._relatives(candidate):
            by_flags = 1.0 if self.space.alike(candidate, other, ("memory",)) else FLAGS_CHANGE
            if trial.too_large and (trial.needed or 0) > by_flags * self.available:
                theirs = self._bound(other)
                if its.needed >= theirs.needed and its.microbatch_rows >= theirs.microbatch_rows:
                    return LARGER
        return None

    def _relatives(self, candidate: Candidate) -> list[tuple[Candidate, Trial]]:
        """What was tried of the same mesh and kernels, so that memory can be inferred from it."""
        return [each for each in self.trials.items() if self.space.alike(candidate, each[0], ("memory", "flags"))]
