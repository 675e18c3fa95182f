"""Throughput, utilization, memory: the time between steps turned into a record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import psutil

from wholestep.pipeline import Recipe
from wholestep.train.metrics import StepRecord
from wholestep.xla.rates import Peak


@dataclass(frozen=True)
class StartedStep:
    """A step that the devices were given, and whose metrics have not been read."""

    step: int
    learning_rate: float
    metrics: Mapping[str, jax.Array]


class Meter:
    """Times steps. Model FLOPs are those of `Decoder.Config.flops_per_token`: recomputation does not count."""

    def __init__(self, recipe: Recipe, peak: Peak | None) -> None:
        self.peak = peak
        self._tokens = recipe.batch_size * recipe.sequence_length
        self._flops = self._tokens * recipe.model.flops_per_token(recipe.sequence_length)
        self._since = time.perf_counter()

    def restart(self) -> None:
        """What took time until now was no training step."""
        self._since = time.perf_counter()

    def record(self, started: StartedStep) -> StepRecord:
        """Wait for the step to end; it took the time since the last record."""
        loss, grad_norm = float(started.metrics["loss"]), float(started.metrics["grad_norm"])
        seconds = time.perf_counter() - self._since
        self.restart()
        return StepRecord(
            step=started.step,
            loss=loss,
            cross_entropy=float(started.metrics.get("cross_entropy", loss)),
            grad_norm=grad_norm,
            learning_rate=started.learning_rate,
            tokens=self._tokens,
            seconds=seconds,
            tokens_per_second=self._tokens / seconds,
            mfu=self._flops / seconds / self.peak.flops if self.peak else None,
            memory_bytes=_memory_bytes(),
        )


def _memory_bytes() -> int:
    """The fullest device's peak, or, where devices are parts of a CPU, this process's resident memory."""
    statistics = [device.memory_stats() for device in jax.local_devices()]
    peaks = [each["peak_bytes_in_use"] for each in statistics if each and "peak_bytes_in_use" in each]
    return max(peaks) if peaks else psutil.Process().memory_info().rss
