"""What is recorded of a run, and where it goes: lines of JSON and TensorBoard events."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch.utils.tensorboard import SummaryWriter

from wholestep.train.evaluate import Validation
from wholestep.train.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One training step.

    Attributes:
        step: from 1.
        loss: what is minimized, a mean over the global batch's unmasked labels, in nats.
        cross_entropy: of the same labels; the loss is this, and what the objective adds to it.
        grad_norm: global, before clipping.
        learning_rate: this step's.
        tokens: rows x sequence length, padding included.
        seconds: wall time since the last step's record; the first step's includes nothing of compilation.
        tokens_per_second: over the same time.
        mfu: model FLOPs over the peak in that time, from 0 to 1; None where no peak is known.
        memory_bytes: resident memory of this process on a CPU, the fullest device's peak elsewhere.
    """

    step: int
    loss: float
    cross_entropy: float
    grad_norm: float
    learning_rate: float
    tokens: int
    seconds: float
    tokens_per_second: float
    mfu: float | None
    memory_bytes: int


class MetricsLog:
    """Appends records to a run's `metrics.jsonl` and TensorBoard files. A context manager."""

    def __init__(self, run: RunDirectory, first_step: int) -> None:
        """Lines from `first_step` on, left by a run that went further than its last checkpoint, are dropped."""
        kept = [line for record, line in _lines(run.metrics) if record["step"] < first_step]
        run.path.mkdir(parents=True, exist_ok=True)
        beside = run.metrics.with_suffix(".tmp")
        beside.write_text("".join(kept))
        beside.replace(run.metrics)
        self._file = run.metrics.open("a")
        self._writer = SummaryWriter(str(run.tensorboard), purge_step=first_step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()
        self._writer.close()

    def write(self, record: StepRecord) -> None:
        self._append("train", dataclasses.asdict(record))

    def write_validation(self, step: int, validation: Validation) -> None:
        self._append("validation", {"step": step, **dataclasses.asdict(validation)})

    def _append(self, kind: str, values: dict[str, Any]) -> None:
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(f"{kind}/{name}", value, values["step"])


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a `metrics.jsonl`: `kind` says whether one is a `train` step or a `validation`."""
    return (values for values, _ in _lines(path))


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    if path.exists():
        for line in path.read_text().splitlines(keepends=True):
            try:
                yield json.loads(line), line
            except json.JSONDecodeError:
                return  # the process was killed while it wrote this line
