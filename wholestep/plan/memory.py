"""What lies in a device's memory over a step, and what for: the compiler's buffer assignment read with the program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from wholestep.plan.assignment import Assignment, Placed
from wholestep.plan.hlo import Instruction, Module, parse_arrays
from wholestep.plan.report import Buffer, Kind, Memory, MemoryPoint
from wholestep.xla.scope import Origin, origin

LARGEST = 10
_POINTS = 600
_ARGUMENTS: dict[str, Kind] = {"parameter": "parameters", "buffer": "parameters", "batch": "batch", "scalar": "batch"}


@dataclass(frozen=True)
class Argument:
    """An argument of the program: `parameter/layers.0:32:1.attention.q_proj.weight`, its bytes and its shape."""

    name: str
    size: int
    shape: str

    @property
    def kind(self) -> Kind:
        return _ARGUMENTS.get(self.name.partition("/")[0], "optimizer state")


class MemoryReader:
    """Reads a program's memory."""

    def __init__(self, module: Module, assignment: Assignment) -> None:
        self.module = module
        self.assignment = assignment

    def memory(self, available: int, host: int, code: int, moments: Mapping[str, float]) -> Memory:
        """Args:
        available: bytes that programs can have.
        host: bytes of host memory that the program takes.
        code: bytes of the program itself.
        moments: instruction -> folded seconds at which it has run.
        """
        fixed: dict[Kind, int] = {"temporaries": self.assignment.others}
        for argument in self.arguments:
            fixed[argument.kind] = fixed.get(argument.kind, 0) + argument.size
        over_time = list(self.assignment.over_time(self.kind))
        peak = max(over_time, key=lambda each: sum(each[1].values()), default=(0, {}))
        return Memory(
            available=available,
            needed=self.assignment.needed + code,
            by_kind=_sorted(_add(fixed, peak[1])),
            host=host,
            largest=self._largest(peak[0]),
            curve=self._curve(over_time, fixed, moments),
        )

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """In order."""
        parameters = self.module.entry.parameters
        return tuple(
            Argument(_argument_name(each), self.assignment.parameters.get(i, 0), str(each.arrays[0]))
            for i, each in enumerate(parameters)
        )

    def kind(self, placed: Placed) -> Kind:
        """Of what shares the memory with others: by what it is made of, and by its shape.

        fp32 arrays of the size of a weight, or of a stack of its shards, are gradients; others of that size, and
        what a gather gives, are weights on their way. Of what else a loop carries, the activations are those that it
        stacks."""
        array = parse_arrays(placed.shape)
        if len(array) != 1:
            return "temporaries"
        dims, dtype = _dims(array[0].dims), array[0].dtype
        operator = self._origin(placed.instruction).operator
        made_by = self._instructions.get(placed.instruction)
        # The compiler joins collectives into some that have no name of ours.
        operation = "" if made_by is None else f"{made_by.opcode} {made_by.name}".replace("-", "_")
        if "all_gather" in operator or "all_gather" in operation:
            return "gathered weights"
        if "reduce_scatter" in operator or "reduce_scatter" in operation:
            return "gradients"
        if dims in self._weights:
            return "gradients" if dtype == "f32" else "gathered weights"
        if made_by is not None and (made_by.opcode == "while" or placed.instruction in self._carried):
            return "activations"
        return "temporaries"

    def _origin(self, name: str) -> Origin:
        instruction = self._instructions.get(name)
        return origin(instruction.op_name) if instruction is not None else Origin()

    @cached_property
    def _instructions(self) -> Mapping[str, Instruction]:
        return {each.name: each for body in self.module.computations.values() for each in body.instructions}

    @cached_property
    def _carried(self) -> frozenset[str]:
        """Instructions that make what a loop starts from, and the loops' own variables."""
        names: set[str] = set()
        for body in self.module.computations.values():
            for loop in body.instructions:
                if loop.opcode == "while":
                    names.update(body.by_name[loop.operands[0]].operands)
                    for inside in self.module.condition_and_body(loop):
                        names.update(parameter.name for parameter in inside.parameters)
        return frozenset(names)

    @cached_property
    def _weights(self) -> frozenset[tuple[int, ...]]:
        """Dimensions of the parameters' arrays, as shards and whole, of one layer and of all together."""
        found: set[tuple[int, ...]] = set()
        for parameter, argument in zip(self.module.entry.parameters, self.arguments, strict=True):
            if argument.name.startswith("parameter/"):
                local = parameter.arrays[0].dims
                whole = tuple(size * parts for size, parts in zip(local, _parts(parameter), strict=True))
                found |= {_dims(local), _dims(whole)}
                if ":" in argument.name.partition("/")[2].partition(".weight")[0]:  # several layers as one
                    found |= {_dims(local[1:]), _dims(whole[1:])}
        return frozenset(dims for dims in found if len(dims) > 1)

    def _largest(self, position: int) -> tuple[Buffer, ...]:
        buffers = [
            Buffer(size=a.size, kind=a.kind, shape=a.shape, module=_module(a.name), line="", name=a.name)
            for a in self.arguments
        ]
        end = 0
        for placed in self.assignment.live(position):
            if placed.offset + placed.size > end:
                buffers.append(self._buffer(placed))
                end = placed.offset + placed.size
        return tuple(sorted(buffers, key=lambda buffer: -buffer.size)[:LARGEST])

    def _buffer(self, placed: Placed) -> Buffer:
        came_from = self._origin(placed.instruction)
        arrays = parse_arrays(placed.shape)
        return Buffer(
            size=placed.size,
            kind=self.kind(placed),
            shape=", ".join(map(str, arrays)),
            module=came_from.module,
            line=came_from.line,
            name=placed.instruction,
        )

    def _curve(
        self, over_time: list[tuple[int, dict[Kind, int]]], fixed: Mapping[Kind, int], moments: Mapping[str, float]
    ) -> tuple[MemoryPoint, ...]:
        """At most about `_POINTS` of them: those between which much changes."""
        at, now = [], 0.0
        for name in self.assignment.order:
            at.append(now)
            now = max(now, moments.get(name, now))
        at.append(now)
        step = max((sum(used.values()) for _, used in over_time), default=0) / _POINTS * 4
        points: list[MemoryPoint] = []
        before: dict[Kind, int] | None = None
        for position, used in over_time:
            if before is None or sum(abs(used.get(k, 0) - before.get(k, 0)) for k in {*used, *before}) >= step:
                points.append(MemoryPoint(at=at[min(position, len(at) - 1)], by_kind=_add(fixed, used)))
                before = used
        return tuple(points)


def _argument_name(parameter: Instruction) -> str:
    found = re.search(r"\['(.*?)'\]", parameter.op_name.replace("\\'", "'"))
    return found[1] if found else parameter.name


def _module(name: str) -> str:
    """`parameter/layers.0:32:1.attention.q_proj.weight` -> `layers.0:32:1.attention.q_proj`."""
    return name.partition("/")[2].rpartition(".")[0]


def _parts(parameter: Instruction) -> list[int]:
    """Into how many parts each dimension is split, of an argument of the program."""
    found = re.search(r"devices=\[([\d,]+)\]", parameter.attributes)
    rank = len(parameter.arrays[0].dims)
    return [int(n) for n in found[1].split(",")][:rank] if found else [1] * rank


def _dims(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Sorted, without ones: layouts and leading ones do not matter."""
    return tuple(sorted(size for size in dims if size > 1))


def _add(one: Mapping[Kind, int], other: Mapping[Kind, int]) -> dict[Kind, int]:
    return {kind: one.get(kind, 0) + other.get(kind, 0) for kind in {**one, **other}}


def _sorted(by_kind: Mapping[Kind, int]) -> dict[Kind, int]:
    return dict(sorted(by_kind.items(), key=lambda each: -each[1]))
