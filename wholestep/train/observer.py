"""Who is told how a run goes."""

from __future__ import annotations

from wholestep.train.evaluate import Validation
from wholestep.train.metrics import StepRecord


class Observer:
    """Told how a run goes. This one does nothing with it; the terminal display is another."""

    def phase(self, what: str) -> None:
        """Something that may take a while has begun: `compiling the training step`, say."""

    def note(self, what: str) -> None:
        """Something that a user should know of the run: layers that could not be a loop, and why."""

    def step(self, record: StepRecord, steps: int) -> None:
        """One of `steps` steps is done."""

    def validated(self, step: int, validation: Validation) -> None:
        """The held-out loss was taken after a step."""
