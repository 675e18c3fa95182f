"""A run of a recipe: everything is made ready and checked here, then the loop takes over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax

from wholestep.checkpoint.checkpoints import Checkpoints
from wholestep.errors import CheckpointError, ConfigError
from wholestep.graph.step import StepGraph
from wholestep.pipeline import Recipe, build_model, eval_program, train_program
from wholestep.train.evaluate import Validation
from wholestep.train.loop import Loop
from wholestep.train.meter import Meter
from wholestep.train.metrics import MetricsLog, StepRecord
from wholestep.train.observer import Observer
from wholestep.train.profile import Trace
from wholestep.train.run_directory import RunDirectory
from wholestep.train.signals import stop_signals
from wholestep.train.state import initial_state, logical_shapes, specs
from wholestep.xla.devices import device_mesh
from wholestep.xla.program import Program, State
from wholestep.xla.rates import Peak, peak_of
from wholestep.xla.stacking import stack

MakeState = Callable[[Recipe, StepGraph, jax.sharding.Mesh], State]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        step: the last step that is in the state.
        last: its record; None if this process ran no step.
        validation: of the state at the end.
        interrupted: whether it was stopped before its last step.
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
        self.mesh = device_mesh(recipe.mesh)
        recipe.check()
        build_model(recipe)  # whatever is wrong with the model's own configuration is said here
        self.recipe = recipe
        self.run = run
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
        on_start: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Run the recipe's steps, or those that are left, saving and validating on the way and at the end.

        Args:
            resume: continue from the folder's last checkpoint, the stream of batches included.
            make_state: gives the first state of a run that does not resume.
            profile: record a trace of a few steps into the run's folder.
            on_start: called when everything is ready; before that a new run has written nothing into its folder, and a
                resumed one has changed nothing.
            until: stop after this step, as a signal would; the schedule is still that of all the recipe's steps.

        Raises:
            NonFiniteError: a loss or a gradient is NaN or infinite. No checkpoint is later than that.
            CheckpointError: there is nothing to resume from, or it belongs to another model.
        """
        recipe, observer = self.recipe, self.observer
        with contextlib.ExitStack() as stack:
            if resume and not self.run.has_checkpoint():
                raise CheckpointError(f"{self.run.path} has no checkpoint to resume from")
            observer.phase("capturing the training step")
            program = train_program(recipe, self.mesh)
            for note in program.step.notes:
                observer.note(note)
            shapes = logical_shapes(recipe, program.step)
            if resume:
                observer.phase("restoring the last checkpoint")
                start, state = self._restore(program, shapes)
            else:
                observer.phase("initializing the parameters")
                start, state = 0, make_state(recipe, program.step, self.mesh)
            observer.phase("compiling the training step")
            program.compile()
            observer.phase("compiling the validation step")
            evaluation = eval_program(recipe, self.mesh)
            evaluation.compile()
            checkpoints = stack.enter_context(Checkpoints(self.run.checkpoints, recipe.checkpoints.keep))
            on_start()
            self.data.tokenizer.save_pretrained(self.run.tokenizer)
            loop = Loop(
                recipe=recipe,
                program=program,
                evaluation=evaluation,
                data=self.data,
                checkpoints=checkpoints,
                log=stack.enter_context(MetricsLog(self.run, first_step=start + 1)),
                trace=stack.enter_context(Trace(self.run.profile, min(start + 3, recipe.steps) if profile else None)),
                meter=Meter(recipe, peak_of(self.mesh)),
                stop=stack.enter_context(stop_signals()),
                observer=observer,
                shapes=shapes,
                step=start,
                state=state,
            )
            last, validation = loop.run(min(until or recipe.steps, recipe.steps))
            observer.phase("finishing the checkpoint")
            checkpoints.wait()
        return Outcome(
            step=loop.step,
            last=last,
            validation=validation,
            interrupted=loop.step < recipe.steps,
            peak=loop.meter.peak,
        )

    def _restore(self, program: Program, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, State]:
        with Checkpoints(self.run.checkpoints) as checkpoints:
            step = checkpoints.latest()
            if step is None:
                raise CheckpointError(f"{self.run.path} has no complete checkpoint to resume from")
            apart = checkpoints.restore(step, specs(program.step, self.mesh), shapes)
            self.data.train.set_state(checkpoints.extra(step)["data"])
        return step, stack(apart, program.step, self.mesh)
