"""How operators run: each at once as a program of its own, or recorded and run many as one."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from wholestep.data.cache import cache_root
from wholestep.device.buffer import Buffer, Unmade
from wholestep.device.operator import OperatorProgram
from wholestep.device.random import GENERATOR
from wholestep.errors import ConfigError
from wholestep.xla.compile_cache import enable_compile_cache
from wholestep.xla.devices import configure_devices
from wholestep.xla.dtypes import carried

Mode = Literal["immediate", "deferred"]

BOUND = 10_000
"""Operators that a recording holds at most, unless `torch.tpu.recording_bound` is set: it bounds the time that a
compilation takes, and what stays in memory."""

Number = tuple[torch.dtype, float]
"""A Python number that an operator was given, and the dtype that PyTorch gives it alone."""

_LIBRARIES = tuple(str(Path(folder).parent) + os.sep for folder in (torch.__file__, __file__))


@dataclass
class Counters:
    """What happened since the start or the last `reset`.

    Attributes:
        operators: that were called.
        fused: those of them that ran as part of a recording's program.
        recordings: programs of recordings that ran.
        compiles: programs that were compiled.
        flushes: how many recordings ran, by what made them run.
    """

    operators: int = 0
    fused: int = 0
    recordings: int = 0
    compiles: int = 0
    flushes: Counter[str] = field(default_factory=Counter)

    @property
    def programs(self) -> int:
        """Programs that ran: a recording is one, any other operator another."""
        return self.operators - self.fused + self.recordings

    @property
    def cache_hits(self) -> int:
        """Programs that were found compiled."""
        return self.programs - self.compiles

    def reset(self) -> None:
        """Count from zero again."""
        self.__init__()  # type: ignore[misc]


class Entry(NamedTuple):
    """One recorded operator.

    Attributes:
        program: what runs.
        inputs: for each array that it reads, the place of a value of the recording, or -1 - i for the i-th array from
            outside, or None for what was never written.
        line: of the user's code.
    """

    program: OperatorProgram
    inputs: tuple[int | None, ...]
    line: str


class Recording(Unmade):
    """Operators in the order they were called, that run as one program.

    Attributes:
        entries: the operators.
        given: the arrays from outside.
        numbers: all numbers of all operators.
        draws: the number of each random draw.
        holders: the buffers that were given its values, by identity.
        captures: whether it becomes a captured step, which has no values before its end.
    """

    captures = False

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.given: list[jax.Array] = []
        self.numbers: list[Number] = []
        self.draws: list[np.ndarray] = []
        # A buffer that is gone leaves its place to the next one of that identity.
        self.holders: dict[int, weakref.ref[Buffer]] = {}
        self._places: dict[int, int] = {}
        self._values = 0

    def add(
        self,
        program: OperatorProgram,
        numbers: Sequence[Number],
        buffers: Sequence[Buffer],
        targets: Sequence[Buffer],
    ) -> None:
        """Record a call, whose outputs `targets` are to hold."""
        inputs = [buffer.place if buffer.value is self else self._input(buffer) for buffer in buffers]
        self.entries.append(Entry(program, tuple(inputs), user_line()))
        self.numbers += numbers
        if program.draws:
            self.draws.append(GENERATOR.draw())
        for place, target in enumerate(targets, self._values):
            if target.value is self:
                target.place = place
            else:
                self.give(target, place)
        self._values += len(targets)

    def give(self, buffer: Buffer, place: int) -> None:
        """Let a buffer hold one of the values."""
        buffer.value, buffer.place = self, place
        self.holders[id(buffer)] = weakref.ref(buffer)

    def _input(self, buffer: Buffer) -> int | None:
        """Where an array from outside is among the inputs."""
        value = buffer.value
        if value is None:
            return None
        if isinstance(value, Unmade):
            value = buffer.array
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = len(self.given)
            self.given.append(value)
        return -1 - place

    def live(self) -> list[Buffer]:
        """The buffers that still hold one of the values."""
        held = (ref() for ref in self.holders.values())
        return [buffer for buffer in held if buffer is not None and buffer.value is self]

    def key(self, live: Sequence[int]) -> Any:
        """What makes two recordings one program."""
        return tuple((id(entry.program), entry.inputs) for entry in self.entries), tuple(live)

    def function(self, live: Sequence[int]) -> Callable[..., list[jax.Array]]:
        """The recording as a function of what `arguments` gives; these of its values."""
        entries, kinds = list(self.entries), [_kind(dtype) for dtype, _ in self.numbers]

        def run(words: jax.Array, numbers: Sequence[jax.Array], *given: jax.Array) -> list[jax.Array]:
            values: list[jax.Array] = []
            draws = iter(words)
            by_kind = [*map(iter, numbers)]
            kind = iter(kinds)
            for entry in entries:
                inputs = [None if i is None else values[i] if i >= 0 else given[-1 - i] for i in entry.inputs]
                own = [next(by_kind[next(kind)]) for _ in range(entry.program.numbers)]
                try:
                    values += entry.program.run(
                        *inputs, numbers=own, words=next(draws) if entry.program.draws else None
                    )
                except Exception as error:
                    error.add_note(f"recorded at {entry.line}")
                    raise
            return [values[i] for i in live]

        return run

    def arguments(self) -> tuple[Any, ...]:
        """What the function is called with."""
        by_kind: tuple[list[Any], ...] = ([], [], [])
        for dtype, value in self.numbers:
            by_kind[_kind(dtype)].append(value)
        words = np.stack(self.draws) if self.draws else np.zeros((0, 2), np.uint32)
        numbers: list[np.ndarray] = [np.asarray(each, dtype) for each, dtype in zip(by_kind, _KINDS, strict=True)]
        return words, numbers, *self.given

    def see(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Hear which tensors an operator is given; a captured step is to know."""

    def moves(self, tensor: torch.Tensor) -> None:
        """Hear which CPU tensor is copied to the device; a captured step is to know."""

    def flush(self, reason: str) -> None:
        """Run what was recorded, for the values that are still needed."""
        if EAGER.recording is self:
            EAGER.recording = Recording()
        EAGER.counters.flushes[reason] += 1
        live = self.live()
        places = sorted({buffer.place for buffer in live})
        key = self.key(places)
        compiled = _COMPILED.get(key)
        if compiled is None:
            compiled = _COMPILED[key] = jax.jit(self.function(places))
            EAGER.counters.compiles += 1
        EAGER.counters.recordings += 1
        values = dict(zip(places, compiled(*self.arguments()), strict=True))
        for buffer in live:
            buffer.value = values[buffer.place]


# The programs of recordings. Their keys hold the identity of operators' programs, which are kept for good.
_COMPILED: dict[Any, Callable[..., list[jax.Array]]] = {}


class Eager:
    """The state of the device: how operators run.

    Attributes:
        counters: what happened.
        recording: what they are added to; None where they run at once.
        bound: operators that a recording holds at most.
    """

    def __init__(self) -> None:
        self.counters = Counters()
        self.bound = BOUND
        self.recording: Recording | None = None
        self.set_mode(os.environ.get("WHOLESTEP_EAGER_MODE", "immediate"))

    @property
    def mode(self) -> Mode:
        """How operators run."""
        return "immediate" if self.recording is None else "deferred"

    def set_mode(self, mode: str) -> None:
        """Raises:
        ConfigError: there is no such mode.
        """
        if mode not in get_args(Mode):
            raise ConfigError(f"eager mode {mode!r} is none of {', '.join(get_args(Mode))} (WHOLESTEP_EAGER_MODE)")
        if mode == self.mode:
            return
        self.flush("the mode changes")
        self.recording = Recording() if mode == "deferred" else None

    @property
    def captures(self) -> bool:
        """Whether a step is being captured."""
        return self.recording is not None and self.recording.captures

    def flush(self, reason: str) -> None:
        """Run what is recorded."""
        if self.recording is not None and (self.recording.entries or self.captures):
            self.recording.flush(reason)

    def end_step(self) -> None:
        """Run what is recorded, unless it is a captured step: an optimizer has changed its parameters."""
        if not self.captures:
            self.flush("an optimizer's step ends")

    def execute(
        self,
        program: OperatorProgram,
        numbers: Sequence[Number],
        buffers: Sequence[Buffer],
        values: Sequence[Any],
        targets: Sequence[Buffer],
    ) -> None:
        """Run or record an operator's program.

        Args:
            program: of the operator.
            numbers: its inputs that are Python numbers.
            buffers: its other inputs.
            values: of these.
            targets: what its outputs are to be held by.
        """
        self.counters.operators += 1
        recording = self.recording
        if recording is not None:
            if len(recording.entries) >= self.bound and not self.captures:
                recording.flush("the recording is full")
                recording = self.recording = Recording()
            self.counters.fused += 1
            recording.add(program, numbers, buffers, targets)
            return
        if not program.has_run:
            program.has_run = True
            self.counters.compiles += 1
        try:
            if not (numbers or program.draws):
                outputs = program.jitted(*values)
            else:
                words = GENERATOR.draw() if program.draws else None
                outputs = program.jitted(*values, numbers=[_number_array(*number) for number in numbers], words=words)
        except TypeError:
            for buffer in buffers:
                if isinstance(buffer.value, Unmade):
                    buffer.value.flush("a value is read")  # raises: a captured step that failed was to make it
            raise
        for target, output in zip(targets, outputs, strict=True):
            target.value = output

    @contextlib.contextmanager
    def recorded(self, recording: Recording) -> Iterator[None]:
        """Add what is called to this recording."""
        self.flush("a step is captured")
        before, self.recording = self.recording, recording
        try:
            yield
        finally:
            self.recording = before


configure_devices()
if jax.config.jax_compilation_cache_dir is None:  # programs of operators are many, and the same in every process
    with contextlib.suppress(OSError):  # a home that cannot be written
        enable_compile_cache(cache_root() / "xla")
EAGER = Eager()


def flush() -> None:
    """Run what is recorded, without waiting for it."""
    EAGER.flush("wholestep.flush")


# In which a recording is given its numbers.
_KINDS = (np.float32, np.int32, np.complex64)


def _kind(dtype: torch.dtype) -> int:
    return 2 if dtype.is_complex else int(not dtype.is_floating_point)


def _number_array(dtype: torch.dtype, value: float) -> jax.Array:
    """A number as a program's input, `[]`."""
    return _nonzero_array(dtype, value) if value else jnp.asarray(value, carried(dtype))  # 0.0 is -0.0 for a cache


@functools.lru_cache(4096)
def _nonzero_array(dtype: torch.dtype, value: float) -> jax.Array:
    return jnp.asarray(value, carried(dtype))


def user_line() -> str:
    """The innermost line that called an operator, outside of PyTorch and of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "a backward pass" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


@functools.cache
def _is_library(filename: str) -> bool:
    return filename.startswith(_LIBRARIES)


def _after_optimizer(*_: Any) -> None:
    EAGER.end_step()


# A loop that reads no values would record until the recording is full, somewhere within a step, and so ever others.
register_optimizer_step_post_hook(_after_optimizer)
