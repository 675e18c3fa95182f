"""The text of a compiled HLO module as data: computations, their instructions in schedule order, shapes."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

HBM, VMEM, CMEM, HOST = 0, 1, 3, 5
"""Memory spaces of the TPU compiler: the device's memory, the fast memory of a core, that of a v4 chip, the host's."""

_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_HEAD = re.compile(r"^\s+(ROOT )?%?([^\s=]+) = ")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\{$")
_END = re.compile(r"^\}(, execution_thread=.*)?$")
_NAMES = re.compile(r"%([\w.\-]+)")
_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "s1": 1, "u1": 1}


@dataclass(frozen=True)
class Array:
    """An array's type.

    Attributes:
        dtype: as HLO writes it: `bf16`.
        dims: sizes.
        space: memory space that it is in.
    """

    dtype: str
    dims: tuple[int, ...]
    space: int = HBM

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def size(self) -> int:
        """Bytes, without padding."""
        return (self.elements * _bits(self.dtype) + 7) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def parse_arrays(text: str) -> tuple[Array, ...]:
    """The arrays of a shape, of a tuple all of them in order, nested ones too."""
    arrays = []
    for dtype, dims, layout in _ARRAY.findall(text):
        space = _SPACE.search(layout)
        sizes = tuple(int(d.removeprefix("<=")) for d in dims.split(",") if d)
        arrays.append(Array(dtype, sizes, int(space[1]) if space else HBM))
    return tuple(arrays)


@functools.cache
def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    digits = re.search(r"\d+", dtype)  # f32, s8, f8e4m3fn, c64
    assert digits is not None, f"HLO type {dtype!r} has no width"
    return int(digits[0])


@dataclass(frozen=True, eq=False)
class Instruction:
    """One line of a computation.

    Attributes:
        name: unique in the module.
        opcode: `fusion`, `all-gather-start`, ...
        shape: its text.
        operands: names of instructions of the same computation.
        attributes: all that follows the operands, as text.
        is_root: whether it is the computation's result.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    attributes: str
    arguments: str = field(repr=False)
    is_root: bool = False

    @property
    def operation(self) -> str:
        """The opcode; of the start of something asynchronous that of what it starts: `all-gather`."""
        return self.opcode.removesuffix("-start")

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Of the result."""
        return parse_arrays(self.shape)

    @functools.cached_property
    def op_name(self) -> str:
        """Where JAX made it: scopes and the primitive, divided by slashes; empty if unknown."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """Computations that it runs once: a fusion's, a call's, a branch's, what an asynchronous start wraps."""
        found = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
        if found:
            return tuple(_NAMES.findall(found[1]))
        found = re.search(r"\b(?:calls|true_computation)=%?([\w.\-]+)", self.attributes)
        if found is None and self.operation in ("call", "async"):
            found = re.search(r"\bto_apply=%?([\w.\-]+)", self.attributes)
        return (found[1],) if found else ()

    def attribute(self, name: str) -> str | None:
        """The text of an attribute: in quotes, in braces, or up to the next comma; None if it has none."""
        found = re.search(rf'\b{name}=(?:"([^"]*)"|(\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|[^\s,]+))', self.attributes)
        return (found[1] or found[2]) if found else None

    @property
    def estimated_cycles(self) -> int | None:
        """The TPU compiler's own estimate; None where it has none."""
        found = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        return int(found[1]) if found and int(found[1]) < 2**63 - 1 else None


@dataclass(frozen=True, eq=False)
class Computation:
    """Instructions in the order in which they are scheduled."""

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {each.name: each for each in self.instructions}

    @functools.cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """In the order of the arguments."""
        own = [each for each in self.instructions if each.opcode == "parameter"]
        return tuple(sorted(own, key=lambda each: int(each.arguments)))

    @functools.cached_property
    def root(self) -> Instruction:
        return next(each for each in self.instructions if each.is_root)

    @functools.cached_property
    def users(self) -> Mapping[str, tuple[Instruction, ...]]:
        """Name of an instruction -> those that read it."""
        users: dict[str, list[Instruction]] = {each.name: [] for each in self.instructions}
        for each in self.instructions:
            for operand in dict.fromkeys(each.operands):
                users[operand].append(each)
        return {name: tuple(readers) for name, readers in users.items()}

    def operands(self, instruction: Instruction) -> tuple[Instruction, ...]:
        return tuple(self.by_name[name] for name in instruction.operands)


@dataclass(frozen=True, eq=False)
class Module:
    """Computations by name."""

    computations: Mapping[str, Computation]
    entry: Computation

    def called(self, instruction: Instruction) -> tuple[Computation, ...]:
        return tuple(self.computations[name] for name in instruction.called)

    def condition_and_body(self, loop: Instruction) -> tuple[Computation, Computation]:
        """Of a `while`."""
        condition, body = (loop.attribute(name) or "" for name in ("condition", "body"))
        return self.computations[condition.lstrip("%")], self.computations[body.lstrip("%")]


def parse(text: str) -> Module:
    """The module of a compiled program's text (`jax.stages.Compiled.as_text()`)."""
    computations: dict[str, Computation] = {}
    entry = name = ""
    body: list[Instruction] = []
    for line in _logical_lines(text):
        if _END.match(line):
            if name:
                computations[name] = Computation(name, tuple(body))
            name = ""
        elif not line.startswith(" "):
            if match := _COMPUTATION.match(line):
                name, body = match[2], []
                entry = name if match[1] else entry
        elif name:
            body.append(_instruction(line))
    return Module(computations, computations[entry])


def _logical_lines(text: str) -> Iterator[str]:
    """Lines; those that continue an instruction (Pallas kernels' metadata) belong to its own."""
    whole = ""
    for line in text.splitlines():
        new = (_HEAD, _COMPUTATION, _END)
        starts = not line or line.startswith("HloModule") or any(pattern.match(line) for pattern in new)
        if starts:
            if whole:
                yield whole
            whole = line
        else:
            whole += line
    yield whole


def _instruction(line: str) -> Instruction:
    head = _HEAD.match(line)
    assert head is not None, f"no HLO instruction: {line[:200]}"
    start = head.end()
    end = _closing(line, start) + 1 if line[start] == "(" else line.index(" ", start)
    opening = line.index("(", end)
    closing = _closing(line, opening)
    arguments = line[opening + 1 : closing]
    return Instruction(
        name=head[2],
        opcode=line[end:opening].strip(),
        shape=line[start:end],
        operands=tuple(_NAMES.findall(arguments)),
        attributes=line[closing + 1 :],
        arguments=arguments,
        is_root=head[1] is not None,
    )


def _closing(line: str, opening: int) -> int:
    """Where the parenthesis is closed that opens there."""
    depth = 0
    for match in re.compile(r"[()]").finditer(line, opening):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise AssertionError(f"unbalanced parentheses in HLO: {line[:200]}")
