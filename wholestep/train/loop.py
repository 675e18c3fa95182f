"""The training loop: one step after the other, and what is due between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from wholestep.checkpoint.checkpoints import Checkpoints
from wholestep.data import TextData
from wholestep.pipeline import Recipe
from wholestep.train.diagnose import non_finite
from wholestep.train.evaluate import Validation, validate
from wholestep.train.meter import Meter, StartedStep
from wholestep.train.metrics import MetricsLog, StepRecord
from wholestep.train.observer import Observer
from wholestep.train.profile import Trace
from wholestep.train.signals import StopRequest
from wholestep.xla.program import Program, State
from wholestep.xla.stacking import unstack


@dataclass(kw_only=True)
class Loop:
    """A run under way.

    Attributes:
        step: the last step whose result is in `state`.
        state: donated to each step and replaced by what comes out.
        shapes: name of each state value, layers apart -> shape without padding.
    """

    recipe: Recipe
    program: Program
    evaluation: Program
    data: TextData
    checkpoints: Checkpoints
    log: MetricsLog
    trace: Trace
    meter: Meter
    stop: StopRequest
    observer: Observer
    shapes: Mapping[str, tuple[int, ...]]
    step: int
    state: State

    def run(self, end: int) -> tuple[StepRecord | None, Validation]:
        """Go on up to step `end`, or until a stop is requested; validate and save what is due, and at the end.

        Returns:
            The last step's record, None if there was no step to do, and the validation of the final state.

        Raises:
            NonFiniteError: a loss or a gradient norm is not finite; the last checkpoint is from before that.
        """
        first, saved, validated = self.step, self.step, -1
        last: StepRecord | None = None
        started: StartedStep | None = None
        self.observer.phase("reading the first batches")
        batch, data_state = self._next_batch()
        data_state_here = data_state
        self.observer.phase("training")
        self.meter.restart()
        while self.step < end and not self.stop.requested:
            data_state_here = data_state
            just_started = self._start_step(batch)
            # The devices are busy: time for the next batch, and to read what the step before has to say.
            batch, data_state = self._next_batch()
            if started:
                last = self._finish(started)
            started = just_started
            self.trace.after(self.step, started.metrics)
            validate_now = _due(self.step, self.recipe.evaluation.every)
            save_now = _due(self.step, self.recipe.checkpoints.every)
            if validate_now or save_now:
                last, started = self._finish(started), None
                if validate_now:
                    validation, validated = self._validate(), self.step
                if save_now:
                    self._save(data_state_here)
                    saved = self.step
                self.meter.restart()
        if started:
            last = self._finish(started)
        if saved < self.step:
            self._save(data_state_here)
        if self.step == first:  # nothing was left to do, and nothing is recorded twice
            return None, validate(self.evaluation, self.state, self.data, self.recipe.evaluation.batches)
        if validated < self.step:
            validation = self._validate()
        return last, validation

    def _start_step(self, batch: Mapping[str, jax.Array]) -> StartedStep:
        self.step += 1
        self.trace.before(self.step)
        rate = self.recipe.optimizer.lr * self.recipe.schedule.factor(self.step, self.recipe.steps)
        scalars = {"learning_rate": rate, "step": self.step, "seed": self.recipe.seed}
        self.state, metrics = self.program(self.state, batch, scalars)
        return StartedStep(self.step, rate, metrics)

    def _finish(self, started: StartedStep) -> StepRecord:
        """Wait for a step and pass on its record."""
        record = self.meter.record(started)
        if not (math.isfinite(record.loss) and math.isfinite(record.grad_norm)):
            raise non_finite(self.program, started.step, self.state, started.metrics)
        self.log.write(record)
        self.observer.step(record, self.recipe.steps)
        return record

    def _next_batch(self) -> tuple[dict[str, jax.Array], dict[str, Any]]:
        """The next batch, placed, and the state of the stream after it."""
        batch = self.program.place_batch(next(self.data.train))
        return batch, self.data.train.get_state()

    def _validate(self) -> Validation:
        validation = validate(self.evaluation, self.state, self.data, self.recipe.evaluation.batches)
        self.log.write_validation(self.step, validation)
        self.observer.validated(self.step, validation)
        return validation

    def _save(self, data_state: dict[str, Any]) -> None:
        """Save the state, layers apart, with the stream of batches as it was after this step's."""
        apart = unstack(self.state, self.program.step, self.program.mesh)
        self.checkpoints.save(self.step, apart, self.shapes, {"data": data_state})


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
