"""A profiler trace of a few steps."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import jax

STEPS = 3
"""How many steps a trace holds."""


class Trace(contextlib.AbstractContextManager["Trace"]):
    """Records the steps of a range, if there is one, into a folder that XProf and TensorBoard read."""

    def __init__(self, directory: Path, first_step: int | None) -> None:
        self._directory = str(directory)
        self._steps = range(0) if first_step is None else range(first_step, first_step + STEPS)
        self._running = False

    def before(self, step: int) -> None:
        if not self._running and step in self._steps:
            jax.profiler.start_trace(self._directory)
            self._running = True

    def after(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        if self._running and step == self._steps[-1]:
            jax.block_until_ready(metrics)
            self._stop()

    def __exit__(self, *error: object) -> None:
        if self._running:
            self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._running = False
