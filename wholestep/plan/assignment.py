"""Where the compiler put what in a device's memory, and for how long: its own buffer assignment, as it dumps it."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*)$")
_VALUE = re.compile(r"^ value: <\d+ (\S+?)(\{[\d,]*\})?(?: \(phi\))? @0> \(size=(\d+),offset=(\d+)\): (.*)$")
_POSITION = re.compile(r"^\s+(\d+):(\S+)$")
_RANGE = re.compile(r"^\s+(\S+?)(\{[\d,]*\}):(\d+)-(\d+)$")

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Placed:
    """An array in the memory that the compiler shares out.

    Attributes:
        instruction: that makes it.
        index: of it in that one's result, `{}` or `{2}`.
        size: bytes, with the padding of its layout.
        offset: where it begins.
        first, last: positions in the schedule between which it is needed.
        shape: its text, with the layout.
    """

    instruction: str
    index: str
    size: int
    offset: int
    first: int
    last: int
    shape: str


@dataclass(frozen=True)
class Assignment:
    """Attributes:
    parameters: bytes of the program's arguments, each with its number.
    others: bytes of constants, of results that take no argument's place, and of what computations within an
        instruction have for themselves.
    heap: bytes that everything else shares.
    placed: what lies in the heap.
    order: instructions as scheduled, loops' bodies in their place.
    """

    parameters: Mapping[int, int]
    others: int
    heap: int
    placed: tuple[Placed, ...]
    order: tuple[str, ...]

    @cached_property
    def needed(self) -> int:
        """Bytes that the program takes of the device, which the compiler holds against those that there are."""
        return sum(self.parameters.values()) + self.others + self.heap

    def live(self, position: int) -> list[Placed]:
        """What is needed at a position, by offset."""
        found = [each for each in self.placed if each.first <= position <= each.last]
        return sorted(found, key=lambda each: (each.offset, -each.size))

    def over_time(self, kind: Callable[[Placed], K]) -> Iterator[tuple[int, dict[K, int]]]:
        """Position -> bytes of the heap in use by kind, wherever something begins or has ended. What shares a place
        with something else (a loop's variables with what they start from) counts once."""
        changes = sorted({each.first for each in self.placed} | {each.last + 1 for each in self.placed})
        for position in changes:
            yield position, in_use(self.live(position), kind)


def in_use(live: Iterable[Placed], kind: Callable[[Placed], K]) -> dict[K, int]:
    """Bytes by kind of arrays in order of their offsets, each byte once."""
    used: dict[K, int] = {}
    end = 0
    for each in live:
        fresh = each.offset + each.size - max(each.offset, end)
        if fresh > 0:
            used[kind(each)] = used.get(kind(each), 0) + fresh
            end = each.offset + each.size
    return used


def parse_assignment(buffers: str, live_ranges: str) -> Assignment:
    """The texts that the compiler dumps as `buffer-assignment` and `live-range`."""
    order, ranges = _live_ranges(live_ranges.splitlines())
    parameters: dict[int, int] = {}
    others = heap = 0
    placed: list[Placed] = []
    in_heap = False
    for line in buffers.splitlines():
        if allocation := _ALLOCATION.match(line):
            size, what = int(allocation[1]), allocation[2]
            in_heap = "preallocated-temp" in what and "color" not in what
            number = re.match(r"parameter (\d+)", what)
            if in_heap:
                heap += size
            elif "color" in what:  # another memory
                continue
            elif number:
                parameters[int(number[1])] = size
            else:
                others += size
        elif in_heap and (value := _VALUE.match(line)):
            name, index = value[1], value[2] or "{}"
            first, last = ranges.get((name, index), (0, -1))
            placed.append(Placed(name, index, int(value[3]), int(value[4]), first, last, value[5]))
    return Assignment(parameters, others, heap, tuple(placed), order)


def _live_ranges(lines: Sequence[str]) -> tuple[tuple[str, ...], dict[tuple[str, str], tuple[int, int]]]:
    order: list[str] = []
    ranges: dict[tuple[str, str], tuple[int, int]] = {}
    for line in lines:
        if found := _POSITION.match(line):
            order.append(found[2])
        elif span := _RANGE.match(line):
            ranges[span[1], span[2]] = int(span[3]), int(span[4])
        elif line.lstrip().startswith("Live ranges at"):
            break
    return tuple(order), ranges
