"""Two reports side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from rich.console import Group, RenderableType

from wholestep.plan import units
from wholestep.plan.report import Finding, Report, Speed
from wholestep.plan.show import findings_view, heading, plain_table

Row = tuple[str, float, float, Callable[[float], str]]
"""A figure's name, its value in both, and how it is written."""

SPEED: tuple[tuple[str, Callable[[Speed], float], Callable[[float], str]], ...] = (
    ("step, expected", lambda it: it.expected, units.seconds),
    ("step, at best", lambda it: it.low, units.seconds),
    ("step, at worst", lambda it: it.high, units.seconds),
    ("tokens/s/chip", lambda it: it.tokens_per_second_per_chip, lambda value: f"{value:,.0f}"),
    ("MFU", lambda it: it.mfu, lambda value: f"{value:.1%}"),
    ("model FLOPs", lambda it: it.model_flops, units.flops),
    ("hardware FLOPs", lambda it: it.hardware_flops, units.flops),
    ("HBM bytes", lambda it: it.hbm_bytes, units.gib),
    ("host bytes", lambda it: it.host_bytes, units.gib),
)


def comparison_view(a: Report, b: Report) -> RenderableType:
    """Figures of both with their difference and ratio, and the findings that only one of them has."""
    return Group(
        *heading(a, "a: "),
        *heading(b, "b: "),
        _table("Memory of a device", _memory(a, b)),
        _table("Time, predicted", _time(a, b)),
        _table("Traffic", _traffic(a, b)),
        *findings_view("Findings in a only", _only(a, b)),
        *findings_view("Findings in b only", _only(b, a)),
    )


def _table(title: str, rows: Iterable[Row]) -> RenderableType:
    columns = {title: False, "a": True, "b": True, "b - a": True, "b / a": True}
    return plain_table(columns, (_cells(*row) for row in rows))


def _cells(name: str, a: float, b: float, text: Callable[[float], str]) -> tuple[str, ...]:
    difference = f"{'+' if b > a else '-'}{text(abs(b - a))}" if b != a else "0"
    return name, text(a), text(b), difference, f"{b / a:.3f}" if a else "-"


def _memory(a: Report, b: Report) -> Iterable[Row]:
    for kind in dict.fromkeys([*a.memory.by_kind, *b.memory.by_kind]):
        yield kind, a.memory.by_kind.get(kind, 0), b.memory.by_kind.get(kind, 0), units.gib
    yield "needed", a.memory.needed, b.memory.needed, units.gib
    yield "available", a.memory.available, b.memory.available, units.gib
    yield "host memory", a.memory.host, b.memory.host, units.gib


def _time(a: Report, b: Report) -> Iterable[Row]:
    for work in dict.fromkeys([*a.speed.terms, *b.speed.terms]):
        yield work, a.speed.terms.get(work, 0), b.speed.terms.get(work, 0), units.seconds
    for name, get, text in SPEED:
        yield name, get(a.speed), get(b.speed), text


def _traffic(a: Report, b: Report) -> Iterable[Row]:
    a_sends, a_waits = _sums(a)
    b_sends, b_waits = _sums(b)
    for name in dict.fromkeys([*a_sends, *b_sends]):
        yield f"{name}: sends", a_sends[name], b_sends[name], units.gib
        yield f"{name}: exposed", a_waits[name], b_waits[name], units.seconds


def _sums(report: Report) -> tuple[dict[str, int], dict[str, float]]:
    """Bytes sent and seconds exposed by network, axes and operation."""
    sends: dict[str, int] = defaultdict(int)
    waits: dict[str, float] = defaultdict(float)
    for it in report.traffic:
        name = " ".join((it.network, *it.axes, it.operation))
        sends[name] += it.size
        waits[name] += it.exposed
    return sends, waits


def _only(one: Report, other: Report) -> list[Finding]:
    """Findings that the other report has not, wherever it has them and whatever they cost."""
    known = {(finding.kind, finding.what) for finding in other.findings}
    return [finding for finding in one.findings if (finding.kind, finding.what) not in known]
