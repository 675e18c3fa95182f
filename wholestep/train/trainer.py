"""The training loop: batches in; steps run; records, checkpoints and validation out."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import psutil

from wholestep.checkpoint.checkpoints import Checkpoints
from wholestep.errors import CheckpointError, ConfigError
from wholestep.graph.step import StepGraph
from wholestep.pipeline import Recipe, eval_program, train_program
from wholestep.train.diagnose import non_finite
from wholestep.train.evaluate import Validation, validate
from wholestep.train.metrics import MetricsLog, StepRecord
from wholestep.train.observer import Observer
from wholestep.train.run_directory import RunDirectory
from wholestep.train.signals import stop_signals
from wholestep.train.state import initial_state, logical_shapes, specs
from wholestep.xla.chips import Peak, peak_of
from wholestep.xla.devices import device_mesh
from wholestep.xla.program import Program, State

MakeState = Callable[[Recipe, StepGraph, jax.sharding.Mesh], State]
PROFILED_STEPS = 3
"""How many steps a trace holds; it begins with the third, when everything is warm."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        step: the last step that is in the state.
        last: its record; None if this process ran no step.
        validation: of the state at the end.
        interrupted: whether a signal stopped it before its last step.
        peak: what utilization was measured against.
    """

    step: int
    last: StepRecord | None
    validation: Validation
    interrupted: bool
    peak: Peak | None


class Trainer:
    """One run of a recipe in a folder. What can be wrong with its configuration is found on construction."""

    def __init__(self, recipe: Recipe, run: RunDirectory, observer: Observer | None = None) -> None:
        """Find the devices and open the data; nothing is compiled yet.

        Raises:
            ConfigError: parts of the recipe do not fit each other, the devices or the tokenizer.
            DataError: the text or the tokenizer cannot be read.
        """
        recipe.check()
        self.recipe = recipe
        self.run = run
        self.mesh = device_mesh(recipe.mesh)
        self.observer = observer or Observer()
        self.observer.phase("reading the text")
        self.data = recipe.data.build(
            sequence_length=recipe.sequence_length,
            batch_size=recipe.batch_size,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        tokens, limit = self.data.tokenizer.vocab_size, recipe.model.vocab_size
        if tokens > limit:
            raise ConfigError(
                f"model.vocab_size={limit} is smaller than the tokenizer's {tokens} tokens: raise it to {tokens}, "
                "or choose another tokenizer"
            )

    def train(
        self,
        *,
        resume: bool = False,
        make_state: MakeState = initial_state,
        profile: bool = False,
        until: int | None = None,
    ) -> Outcome:
        """Run the recipe's steps, or those that are left, saving and validating on the way and at the end.

        Args:
            resume: continue from the folder's last checkpoint, the stream of batches included.
            make_state: gives the first state of a run that does not resume.
            profile: record a trace of a few steps into the run's folder.
            until: stop after this step, as a signal would; the schedule is still that of all the recipe's steps.

        Raises:
            NonFiniteError: a loss or a gradient is NaN or infinite. No checkpoint is later than that.
            CheckpointError: there is nothing to resume from, or it belongs to another model.
        """
        recipe, observer = self.recipe, self.observer
        observer.phase("capturing the training step")
        program = train_program(recipe, self.mesh)
        shapes = logical_shapes(recipe, program.step)
        with contextlib.ExitStack() as stack:
            checkpoints = Checkpoints(self.run.checkpoints, recipe.checkpoints.keep)
            stack.callback(checkpoints.close)
            if resume:
                observer.phase("restoring the last checkpoint")
                start, state = self._restore(checkpoints, program, shapes)
            else:
                observer.phase("initializing the parameters")
                start, state = 0, make_state(recipe, program.step, self.mesh)
            observer.phase("compiling the training step")
            _ = program.executable
            observer.phase("compiling the validation step")
            evaluation = eval_program(recipe, self.mesh)
            _ = evaluation.executable
            log = stack.enter_context(MetricsLog(self.run, first_step=start + 1))
            stop = stack.enter_context(stop_signals())
            trace = stack.enter_context(
                _Trace(self.run, range(start + 3, start + 3 + PROFILED_STEPS) if profile else None)
            )
            meter = _Meter(recipe, peak_of(self.mesh))

            step, last, validation, saved = start, None, None, start
            end = min(until or recipe.steps, recipe.steps)
            pending: _Pending | None = None
            ahead = self._next_batch(program)
            observer.phase("training")
            meter.restart()
            while step < end and not stop.requested:
                step += 1
                batch, data_state = ahead
                rate = recipe.optimizer.lr * recipe.schedule.factor(step, recipe.steps)
                trace.before(step)
                state, metrics = program(state, batch, {"learning_rate": rate, "step": step})
                # While the devices work on this step: the next batch, and what the last step has to say.
                ahead = self._next_batch(program)
                if pending:
                    last = self._record(pending, program, state, log, meter)
                pending = _Pending(step, rate, metrics)
                trace.after(step, metrics)
                validate_now, save_now = _due(step, recipe.evaluation.every), _due(step, recipe.checkpoints.every)
                if validate_now or save_now:
                    last = self._record(pending, program, state, log, meter)
                    pending, validation = None, None
                    if validate_now:
                        validation = self._validate(evaluation, state, step, log)
                    if save_now:
                        checkpoints.save(step, state, shapes, {"data": data_state})
                        saved = step
                    meter.restart()
            if pending:
                last, validation = self._record(pending, program, state, log, meter), None
            if step > saved:
                observer.phase("saving")
                checkpoints.save(step, state, shapes, {"data": data_state})
            validation = validation or self._validate(evaluation, state, step, log)
            observer.phase("finishing the checkpoint")
            checkpoints.wait()
            return Outcome(
                step=step, last=last, validation=validation, interrupted=step < recipe.steps, peak=meter.peak
            )

    def _next_batch(self, program: Program) -> tuple[dict[str, jax.Array], dict[str, Any]]:
        """The next batch, and the state of the stream after it."""
        batch = program.place_batch(next(self.data.train))
        return batch, self.data.train.get_state()

    def _record(self, pending: _Pending, program: Program, state: State, log: MetricsLog, meter: _Meter) -> StepRecord:
        """Wait for a step's metrics and pass them on."""
        loss, norm = float(pending.metrics["loss"]), float(pending.metrics["grad_norm"])
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise non_finite(program, pending.step, state, dict(pending.metrics))
        record = meter.record(pending, loss, norm)
        log.write(record)
        self.observer.step(record, self.recipe.steps)
        return record

    def _validate(self, program: Program, state: State, step: int, log: MetricsLog) -> Validation:
        validation = validate(program, state, self.data, self.recipe.evaluation.batches)
        log.write_validation(step, validation)
        self.observer.validated(step, validation)
        return validation

    def _restore(
        self, checkpoints: Checkpoints, program: Program, shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[int, State]:
        step = checkpoints.latest()
        if step is None:
            raise CheckpointError(f"{self.run.path} has no checkpoint to resume from")
        state = checkpoints.restore(step, specs(program.step, self.mesh), shapes)
        self.data.train.set_state(checkpoints.extra(step)["data"])
        return step, state


@dataclass(frozen=True)
class _Pending:
    """A step that was started and whose metrics have not been read."""

    step: int
    learning_rate: float
    metrics: Mapping[str, jax.Array]


class _Meter:
    """Turns the time between steps into throughput and utilization."""

    def __init__(self, recipe: Recipe, peak: Peak | None) -> None:
        self.peak = peak
        self._tokens = recipe.batch_size * recipe.sequence_length
        self._flops = self._tokens * recipe.model.flops_per_token(recipe.sequence_length)
        self._since = time.perf_counter()

    def restart(self) -> None:
        """What took time until now was no training step."""
        self._since = time.perf_counter()

    def record(self, pending: _Pending, loss: float, grad_norm: float) -> StepRecord:
        seconds = time.perf_counter() - self._since
        self.restart()
        return StepRecord(
            step=pending.step,
            loss=loss,
            grad_norm=grad_norm,
            learning_rate=pending.learning_rate,
            tokens=self._tokens,
            seconds=seconds,
            tokens_per_second=self._tokens / seconds,
            mfu=self._flops / seconds / self.peak.flops if self.peak else None,
            memory_bytes=_memory_bytes(),
        )


class _Trace(contextlib.AbstractContextManager["_Trace"]):
    """Records a profiler trace over a range of steps, if any."""

    def __init__(self, run: RunDirectory, steps: range | None) -> None:
        self._directory, self._steps, self._running = str(run.profile), steps, False

    def before(self, step: int) -> None:
        if self._steps and step == self._steps.start:
            jax.profiler.start_trace(self._directory)
            self._running = True

    def after(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        if self._running and self._steps and step == self._steps[-1]:
            jax.block_until_ready(metrics)
            self._stop()

    def __exit__(self, *error: object) -> None:
        if self._running:
            self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._running = False


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _memory_bytes() -> int:
    """The fullest device's peak, or, where devices are parts of a CPU, this process's resident memory."""
    statistics = [device.memory_stats() for device in jax.local_devices()]
    peaks = [each["peak_bytes_in_use"] for each in statistics if each and "peak_bytes_in_use" in each]
    return max(peaks) if peaks else psutil.Process().memory_info().rss
