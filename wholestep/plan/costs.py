"""What every scheduled instruction of a compiled step costs, by shape, and where it came from; loops, their trips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import jax

from wholestep.plan.hlo import HOST, Computation, Instruction, Module
from wholestep.plan.network import COLLECTIVES, Collective, collective
from wholestep.plan.report import Work
from wholestep.plan.trips import trips
from wholestep.plan.work import FREE, bytes_moved, flops, only_moves
from wholestep.xla.chips import Chip
from wholestep.xla.scope import Origin, origin

# Custom calls that are no work: they prepare, or tell the compiler something.
_NO_WORK = frozenset(
    {"PrepareAsyncCallStart", "PrepareAsyncCallDone", "AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast"}
)
# Of a transfer between slices: it counts where it is sent, and is waited for where its result is.
_HALVES = frozenset({"recv", "send-done"})
PALLAS = "tpu_custom_call"

Kernel = tuple[str, str]
"""The module and the operator that a Pallas kernel comes from."""


@dataclass(frozen=True, eq=False)
class Cost:
    """One instruction, once.

    Attributes:
        instruction: which.
        origin: the module, line and operator that it came from.
        work: what the device does.
        flops: of products; of a Pallas kernel as its operator's formula has it.
        moved: memory space -> bytes.
        collective: what it sends to other devices.
        awaits: of an instruction that waits for one that started earlier, that one's name.
        starts: whether it only starts what another waits for.
        on_sparse_core: whether it runs there.
    """

    instruction: Instruction
    origin: Origin
    work: Work
    flops: int
    moved: Mapping[int, int]
    collective: Collective | None
    awaits: str | None
    starts: bool
    on_sparse_core: bool


@dataclass(frozen=True, eq=False)
class Loop:
    """A `while`: its trips, and what one costs.

    Attributes:
        trips: 1 where they are not known.
        known: whether they are.
    """

    instruction: Instruction
    origin: Origin
    trips: int
    known: bool
    body: tuple[Cost | Loop, ...]


Schedule = tuple[Cost | Loop, ...]


def costs(module: Module, mesh: jax.sharding.Mesh, chip: Chip, kernels: Mapping[Kernel, int]) -> Schedule:
    """The entry computation's instructions that take time, in order.

    Args:
        module: compiled for `mesh`.
        mesh: of `chip`'s devices.
        chip: the chip.
        kernels: FLOPs of a step's Pallas kernels, all calls with all their trips together.
    """
    schedule = _costs(module, module.entry, mesh, chip)
    return _with_kernels(schedule, kernels)


def walk(schedule: Schedule, times: int = 1) -> Iterator[tuple[Cost, int]]:
    """Every cost with the number of times that it occurs in a step."""
    for each in schedule:
        if isinstance(each, Loop):
            yield from walk(each.body, times * each.trips)
        else:
            yield each, times


def loops(schedule: Schedule) -> Iterator[Loop]:
    """Every loop, outer ones first."""
    for each in schedule:
        if isinstance(each, Loop):
            yield each
            yield from loops(each.body)


def _costs(module: Module, computation: Computation, mesh: jax.sharding.Mesh, chip: Chip) -> Schedule:
    found: list[Cost | Loop] = []
    started: dict[str, Cost] = {}
    for instruction in computation.instructions:
        if instruction.opcode == "while":
            count = trips(module, computation, instruction)
            body = _costs(module, module.condition_and_body(instruction)[1], mesh, chip)
            found.append(
                Loop(instruction, origin(instruction.op_name), 1 if count is None else count, count is not None, body)
            )
        elif not _is_free(instruction):
            start = started.get(_awaited(module, computation, instruction))
            if start is not None:
                found.append(_wait(instruction, start))
                continue
            cost = _cost(module, computation, instruction, mesh, chip)
            chain = _chain(module, instruction)
            if chain in started:  # goes on with a transfer beside its own work
                cost = replace(cost, collective=None)
            elif cost.starts:
                started[chain or _rendezvous(instruction) or instruction.name] = cost
            found.append(cost)
    return tuple(found)


def _is_free(instruction: Instruction) -> bool:
    opcode = instruction.opcode
    return opcode in FREE or opcode in _HALVES or (opcode == "custom-call" and _target(instruction) in _NO_WORK)


def _awaited(module: Module, computation: Computation, instruction: Instruction) -> str:
    """What joins an instruction that waits with the one that started what it waits for; empty if it does not wait."""
    if instruction.opcode == "recv-done":
        return _rendezvous(computation.operands(instruction)[0])
    if instruction.opcode.endswith("-done") and instruction.operands:
        return instruction.operands[0]
    return _chain(module, instruction) if _holds(module, instruction, "AsyncCollectiveDone") else ""


def _chain(module: Module, instruction: Instruction) -> str:
    """Of a collective that is spread over fusions, from one that starts it over those that take steps of it beside
    their own work to one that ends it: what these have in common. Each holds the whole collective."""
    for inside in module.called(instruction):
        for each in inside.instructions:
            if (number := each.attribute("chain_id")) is not None and each.operation in COLLECTIVES:
                return f"{each.attribute('channel_id')} {number}"
    return ""


def _rendezvous(instruction: Instruction) -> str:
    """What a send to other slices and its recv have in common."""
    return instruction.attribute("_xla_host_transfer_rendezvous") or ""


def _holds(module: Module, instruction: Instruction, target: str) -> bool:
    return any(_target(each) == target for inside in module.called(instruction) for each in inside.instructions)


def _target(instruction: Instruction) -> str:
    return instruction.attribute("custom_call_target") or ""


def _wait(instruction: Instruction, start: Cost) -> Cost:
    return Cost(instruction, start.origin, start.work, 0, {}, None, start.instruction.name, False, False)


def _cost(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    mesh: jax.sharding.Mesh,
    chip: Chip,
) -> Cost:
    work_flops = flops(module, computation, instruction)
    moved = bytes_moved(module, computation, instruction)
    sends = collective(module, computation, instruction, mesh, chip)
    return Cost(
        instruction=instruction,
        origin=_origin(module, computation, instruction),
        work=_work(module, instruction, work_flops, moved, sends),
        flops=work_flops,
        moved=moved,
        collective=sends,
        awaits=None,
        starts=instruction.opcode.endswith(("-start", "send")) or _holds(module, instruction, "AsyncCollectiveStart"),
        on_sparse_core='async_execution_thread="sparsecore"' in instruction.attributes,
    )


def _work(
    module: Module, instruction: Instruction, work_flops: int, moved: Mapping[int, int], sends: Collective | None
) -> Work:
    if work_flops:
        return "matmul"
    if sends is not None:
        return "collective"
    if instruction.opcode == "custom-call" and _target(instruction) == PALLAS:
        return "kernel"
    if moved.get(HOST):
        return "host"
    return "copy" if only_moves(module, instruction) else "elementwise"


def _origin(module: Module, computation: Computation, instruction: Instruction, depth: int = 4) -> Origin:
    """Its own; where it has none, or its operator alone, that of the first instruction inside which has one; where none
    has, that of what it reads: the compiler names nothing that it adds itself."""
    own = _within(module, instruction)
    if own.module or own.line or not depth:
        return own
    read = (_origin(module, computation, each, depth - 1) for each in computation.operands(instruction))
    return next((each for each in read if each.module or each.line), own)


def _within(module: Module, instruction: Instruction) -> Origin:
    own = origin(instruction.op_name)
    if own.module or own.line:
        return own
    inside = (_within(module, each) for called in module.called(instruction) for each in called.instructions)
    return next((each for each in inside if each.module or each.line), own)


def _with_kernels(schedule: Schedule, kernels: Mapping[Kernel, int]) -> Schedule:
    """The FLOPs of an operator shared out equally among the kernels that came from it."""
    calls: dict[Kernel, int] = {}
    for cost, times in walk(schedule):
        if cost.work == "kernel":
            calls[_kernel(cost)] = calls.get(_kernel(cost), 0) + times

    def filled(each: Cost | Loop) -> Cost | Loop:
        if isinstance(each, Loop):
            return replace(each, body=tuple(map(filled, each.body)))
        if each.work != "kernel" or _kernel(each) not in kernels:
            return each
        return replace(each, flops=kernels[_kernel(each)] // calls[_kernel(each)])

    return tuple(map(filled, schedule))


def _kernel(cost: Cost) -> Kernel:
    return cost.origin.module, cost.origin.operator
