"""Stopping a run from outside."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """Whether a signal has asked the run to stop after the current step."""

    requested: bool = False


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """SIGTERM, and the first SIGINT, ask for a stop; a second SIGINT interrupts at once."""
    stop = StopRequest()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and stop.requested:
            raise KeyboardInterrupt
        stop.requested = True

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
