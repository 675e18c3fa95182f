"""A report on the terminal: does it fit, how fast is it, what does the device wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from wholestep.plan import units
from wholestep.plan.report import Finding, Report

LARGEST = 10


def report_view(report: Report) -> RenderableType:
    """All but the pictures and the operators. No text in a report is read as rich's markup."""
    return Group(
        *heading(report),
        *_fits(report),
        *_how_fast(report),
        *_exposed(report),
        *findings_view("Findings", report.findings),
    )


def heading(report: Report, label: str = "") -> list[RenderableType]:
    """What was compiled, and what is not to be read from the figures."""
    lines: list[RenderableType] = [
        Text(f"{label}{report.recipe}", style="bold"),
        Text(f"{units.topology(report)}, {report.chips:,} chips, {report.devices:,} devices, mesh {report.mesh}"),
        Text(", ".join(f"{name} {version}" for name, version in report.versions.items()), style="dim"),
    ]
    if report.overrides:
        lines.insert(1, Text("set " + " ".join(report.overrides)))
    if note := units.shallow_note(report):
        lines.append(Text(note, style="bold yellow"))
    return lines


def findings_view(title: str, findings: Sequence[Finding]) -> Iterable[RenderableType]:
    """Each with where it comes from and what mends it."""
    yield _question(title)
    if not findings:
        yield Text("none")
    for finding in findings:
        cost = f" ({units.seconds(finding.seconds)} a step)" if finding.seconds else ""
        yield Text.assemble((f"{finding.kind}{cost}: ", "bold"), finding.what)
        yield from (_indented(f"at {place}") for place in finding.where)
        if finding.mend:
            yield _indented(f"mend: {finding.mend}", style="green")


def plain_table(columns: dict[str, bool], rows: Iterable[Sequence[str]]) -> RenderableType:
    """A table whose cells are text and fold rather than lose their ends. Columns: whether they hold numbers."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, number in columns.items():
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in rows:
        table.add_row(*map(Text, row))
    return Padding(table, (1, 0, 0, 0), expand=False)


def _fits(report: Report) -> Iterable[RenderableType]:
    memory = report.memory
    yield _question("Fits?")
    left = memory.available - memory.needed
    verdict = f"yes, with {units.gib(left)} free" if memory.fits else f"no, {units.gib(-left)} short"
    amounts = f": it needs {units.gib(memory.needed)} of the {units.gib(memory.available)} of a device"
    yield Text.assemble((verdict, "bold green" if memory.fits else "bold red"), amounts)
    if memory.host:
        yield Text(f"and {units.gib(memory.host)} of host memory for each device")
    if report.remedies:
        yield plain_table(
            {"what was tried": False, "fits": False, "needs": True, "step": True},
            (
                (it.override, "yes" if it.fits else "no", units.gib(it.needed), units.seconds(it.expected))
                for it in report.remedies
            ),
        )
    yield plain_table(
        {"at the peak": False, "size": True, "share": True},
        ((kind, units.gib(size), units.share(size, memory.needed)) for kind, size in units.at_the_peak(memory)),
    )
    yield plain_table(
        {"largest": True, "kind": False, "module": False, "line": False, "shape": False},
        ((units.gib(it.size), it.kind, it.module or it.name, it.line, it.shape) for it in memory.largest[:LARGEST]),
    )


def _how_fast(report: Report) -> Iterable[RenderableType]:
    speed = report.speed
    yield _question("How fast? (predicted from the compiled program, not measured)")
    yield Text.assemble(
        (f"{units.seconds(speed.expected)} a step", "bold"),
        f" ({units.seconds(speed.low)} to {units.seconds(speed.high)}), MFU {speed.mfu:.1%}, "
        f"{speed.tokens_per_second_per_chip:,.0f} tokens/s/chip, bound by {speed.bound_by}",
    )
    yield Text(
        f"a device computes {units.flops(speed.hardware_flops)}; the model's own are {units.flops(speed.model_flops)}; "
        f"it moves {units.gib(speed.hbm_bytes)} to and from HBM, "
        f"{units.gib(speed.host_bytes)} to and from the host"
    )
    yield plain_table(
        {"a step's time": False, "seconds": True, "share": True},
        (
            (work, units.seconds(value), units.share(value, speed.expected))
            for work, value in _descending(speed.terms.items())
        ),
    )
    yield Text("assuming that")
    yield from (_indented(f"- {sentence}") for sentence in speed.assumptions)


def _exposed(report: Report) -> Iterable[RenderableType]:
    yield _question("What is exposed?")
    takes, exposed = (sum(getattr(it, name) for it in report.traffic) for name in ("seconds", "exposed"))
    yield Text(
        f"the device waits for {units.seconds(exposed)} of the {units.seconds(takes)} that its collectives take"
        if report.traffic
        else "nothing: no collectives"
    )
    if report.traffic:
        numbers = ("runs", "beside work", "sends", "takes", "exposed")
        yield plain_table(
            {"network": False, "axes": False, "operation": False, **dict.fromkeys(numbers, True)},
            (
                (
                    it.network, ", ".join(it.axes) or "none", it.operation, f"{it.count:,}", f"{it.asynchronous:,}",
                    units.gib(it.size), units.seconds(it.seconds), units.seconds(it.exposed),
                )
                for it in report.traffic
            ),
        )  # fmt: skip


def _question(text: str) -> Text:
    return Text(f"\n{text}", style="bold underline")


def _indented(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style=style), (0, 0, 0, 2), expand=False)


def _descending(amounts: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    return sorted((item for item in amounts if item[1]), key=lambda item: -item[1])
