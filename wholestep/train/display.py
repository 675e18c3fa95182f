"""A run on the terminal: one live line with a progress bar, or plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn

from wholestep.train.evaluate import Validation
from wholestep.train.metrics import StepRecord
from wholestep.train.observer import Observer

PLAIN_SECONDS = 5.0
"""Between two plain lines."""


class Display(Observer, contextlib.AbstractContextManager["Display"]):
    """Shows step, loss, gradient norm, learning rate, tokens/s, MFU, memory and time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._progress.add_task("starting", total=None, figures="")
        self._recent: deque[StepRecord] = deque(maxlen=20)
        self._last_line = 0.0
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()

    def phase(self, what: str) -> None:
        self._progress.update(self._task, description=what)
        if not self._console.is_terminal:
            self._console.print(f"[{time.monotonic() - self._began:6.1f} s] {what}", highlight=False, markup=False)

    def note(self, what: str) -> None:
        self._console.print(f"note: {what}", highlight=False, markup=False)

    def step(self, record: StepRecord, steps: int) -> None:
        self._recent.append(record)
        figures = _figures(record, self._recent)
        self._progress.update(
            self._task,
            description=f"step {record.step}/{steps}",
            total=steps,
            completed=record.step,
            figures=figures,
        )
        now = time.monotonic()
        if not self._console.is_terminal and (now - self._last_line > PLAIN_SECONDS or record.step == steps):
            self._last_line = now
            left = (steps - record.step) * _mean([each.seconds for each in self._recent])
            self._console.print(
                f"step {record.step}/{steps}  {figures}  {left:.0f} s left", highlight=False, soft_wrap=True
            )

    def validated(self, step: int, validation: Validation) -> None:
        self._console.print(
            f"step {step}: held-out loss {validation.loss:.3f} nats over {validation.tokens:,} tokens "
            f"(their unigram entropy is {validation.unigram_entropy:.3f})",
            highlight=False,
            soft_wrap=True,
        )


def _figures(record: StepRecord, recent: deque[StepRecord]) -> str:
    """The record's own loss; rates as means over the recent steps, which wobble less."""
    tokens_per_second = record.tokens / _mean([each.seconds for each in recent])
    figures = [
        f"loss {record.loss:.3f}",
        f"grad {record.grad_norm:.2f}",
        f"lr {record.learning_rate:.1e}",
        f"{tokens_per_second:,.0f} tok/s",
        f"{record.memory_bytes / 2**30:.1f} GiB",
    ]
    if record.mfu is not None:
        mfu = record.mfu * tokens_per_second / record.tokens_per_second
        figures.insert(4, f"MFU {mfu:.1%}")
    return "  ".join(figures)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
