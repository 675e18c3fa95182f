"""What sets of compiler flags change in a compiled program, one set at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from wholestep.errors import ConfigError, WholestepError, nearest
from wholestep.plan import units
from wholestep.plan.isolated import compile_isolated
from wholestep.plan.job import Job
from wholestep.plan.planner import plan
from wholestep.plan.progress import Show
from wholestep.plan.report import Report
from wholestep.plan.show import plain_table
from wholestep.xla.flag_sets import SETS
from wholestep.xla.topologies import topology_chip

NONE = "none"
FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("needs", "needed", units.gib),
    ("live", "live", units.gib),
    ("exposed", "exposed", units.seconds),
    ("matmul", "matmul", units.seconds),
    ("step", "expected", units.seconds),
)
"""Columns of the table: name, attribute of `Effect`, how it is written."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A program compiled with a set of flags.

    Attributes:
        name: of the set; `none` without one.
        needed: bytes a device.
        live: bytes in use at the peak; `needed` also holds what fragments.
        collectives: in a step; `asynchronous` of them run beside other work.
        exposed: seconds that the device waits for them in a step.
        matmul: seconds of matrix products in a step.
        expected: seconds a step.
    """

    name: str
    needed: int
    live: int
    collectives: int
    asynchronous: int
    exposed: float
    matmul: float
    expected: float

    @classmethod
    def of(cls, name: str, report: Report) -> Effect:
        """The figures of a report."""
        return cls(
            name=name,
            needed=report.memory.needed,
            live=sum(report.memory.by_kind.values()),
            collectives=sum(it.count for it in report.traffic),
            asynchronous=sum(it.asynchronous for it in report.traffic),
            exposed=sum(it.exposed for it in report.traffic),
            matmul=report.speed.terms.get("matmul", 0.0),
            expected=report.speed.expected,
        )


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A set that the program cannot be compiled with, and why."""

    name: str
    error: str


def read(job: Job, progress: Callable[[float, int], None]) -> Report:
    """Compile a job and read it."""
    return plan(job, compile_isolated(job, progress))


def sets_for(topology: str, chosen: Sequence[str]) -> tuple[str, ...]:
    """The chosen sets, or all that are for the topology's chip.

    Raises:
        ConfigError: there is no such set, or it is not for this chip.
    """
    chip = topology_chip(topology)
    known = [name for name, flag_set in SETS.items() if chip.name in flag_set.chips]
    for name in chosen:
        if name not in known:
            why = f"is not for {chip.name}" if name in SETS else f"is no set{nearest(name, known)}"
            raise ConfigError(f"--sets: {name} {why}; sets for {chip.name} are {', '.join(known)}")
    return tuple(chosen or known)


def effects(
    job: Job,
    sets: Sequence[str],
    progress: Show,
    measure: Callable[[Job, Callable[[float, int], None]], Report] = read,
) -> tuple[Effect | Failure, ...]:
    """The program without a set, then with each on top of the job's own flags.

    Args:
        job: what to compile.
        sets: names of `SETS`.
        progress: told what is compiled next; its answer is told seconds and bytes.
        measure: what compiles.

    Raises:
        WholestepError: the program does not compile without a set.
    """
    found: list[Effect | Failure] = [Effect.of(NONE, measure(job, progress("without a set")))]
    for name in sets:
        try:
            report = measure(dataclasses.replace(job, flags=(*job.flags, name)), progress(f"with {name}"))
        except WholestepError as error:
            found.append(Failure(name=name, error=str(error)))
        else:
            found.append(Effect.of(name, report))
    return tuple(found)


def effects_view(found: Sequence[Effect | Failure]) -> RenderableType:
    """One row a set, with the change against none below each figure that is another."""
    plain = found[0]
    assert isinstance(plain, Effect)
    columns = {"set": False, "async": True, **dict.fromkeys((name for name, *_ in FIGURES), True)}
    return Group(
        plain_table(columns, (_row(it, plain) for it in found if isinstance(it, Effect))),
        *(Text(f"{it.name}: {it.error}", style="yellow") for it in found if isinstance(it, Failure)),
        Text("predicted from compiled programs, not measured", style="dim"),
    )


def _row(it: Effect, plain: Effect) -> tuple[str, ...]:
    beside = f"{it.asynchronous:,} of {it.collectives:,}"
    return it.name, beside, *(_cell(getattr(it, name), getattr(plain, name), text) for _, name, text in FIGURES)


def _cell(value: float, plain: float, text: Callable[[float], str]) -> str:
    change = f"{value / plain - 1:+.1%}" if plain else "new"
    return text(value) if value == plain or change in ("+0.0%", "-0.0%") else f"{text(value)}\n{change}"
