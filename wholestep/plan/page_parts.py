"""The parts of a report's page that are text: header, tiles, bars, tables, findings."""

from __future__ import annotations

from collections.abc import Iterable

from wholestep.plan import units
from wholestep.plan.markup import Html, Number, element, join, table
from wholestep.plan.report import Finding, Report


def headline(report: Report) -> Html:
    """What was compiled, for what, with what."""
    what = [
        ("topology", units.topology(report)),
        ("chips", f"{report.chips:,}" + (f" ({report.devices:,} devices)" if report.devices != report.chips else "")),
        ("mesh", report.mesh),
        ("layers", str(report.layers)),
        ("compiled in", units.seconds(report.compile_seconds)),
        *report.versions.items(),
    ]
    return join(
        [
            element("h1", report.recipe),
            element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in what)),
            element("p", *(element("code", override) for override in report.overrides), class_="overrides"),
        ]
    )


def notices(report: Report) -> Html:
    """What to know before any figure is read."""
    lines = [element("p", "Predicted from the compiled program, not measured.")]
    if note := units.shallow_note(report):
        lines.append(element("p", note, class_="shallow"))
    return join(lines)


def parts(report: Report) -> dict[str, Html]:
    """By the name of the template's placeholder."""
    return {
        "title": join([f"{report.recipe} on {report.topology}"]),
        "tiles": _tiles(report),
        "time_bar": _bar([(work, time, units.seconds(time)) for work, time in report.speed.terms.items()]),
        "memory_bar": _bar([(kind, size, units.gib(size)) for kind, size in units.at_the_peak(report.memory)]),
        "totals": _totals(report),
        "count": Html(len(report.findings)),
        "findings": join(map(_finding, report.findings)) or element("p", "None.", class_="quiet"),
        "remedies": _remedies(report),
        "operators": _operators(report),
        "buffers": _buffers(report),
        "traffic": _traffic(report),
        "assumptions": element("ul", *(element("li", sentence) for sentence in report.speed.assumptions)),
        "flags": element("dl", *_definitions(report.options.items())) if report.options else Html("<p>None set.</p>"),
    }


def _tiles(report: Report) -> Html:
    memory, speed = report.memory, report.speed
    left = memory.available - memory.needed
    of = f"{units.gib(memory.needed)} of {units.gib(memory.available)} a device"
    fits = _tile("Fits", f"{units.gib(left)} free", of, "good")
    does_not = _tile("Does not fit", f"{units.gib(-left)} short", of, "bad")
    rate = speed.tokens_per_second_per_chip
    return join(
        [
            fits if memory.fits else does_not,
            _tile("Step", units.seconds(speed.expected), f"{units.seconds(speed.low)} to {units.seconds(speed.high)}"),
            _tile("MFU", f"{speed.mfu:.1%}", f"model {units.flops(speed.model_flops)} a device"),
            _tile("Tokens/s/chip", f"{rate:,.0f}", f"{rate * report.chips:,.0f} tokens/s in all"),
            _tile("Bound by", speed.bound_by, "", "words"),
        ]
    )


def _tile(name: str, value: str, detail: str, class_: str = "") -> Html:
    return element(
        "div",
        element("h2", name),
        element("p", value, class_="value"),
        element("p", detail, class_="detail"),
        class_=f"tile {class_}".strip(),
    )


def _bar(pieces: list[tuple[str, float, str]]) -> Html:
    """A whole in its parts: a bar, and a legend that says the same without colour."""
    whole = sum(value for _, value, _ in pieces)
    pieces = sorted((piece for piece in pieces if piece[1] > 0), key=lambda piece: -piece[1])
    bar = (element("span", style=f"flex-grow:{value / whole:.5f};{background(name)}") for name, value, _ in pieces)
    rows = (
        element(
            "tr",
            element("td", swatch(name), name),
            element("td", text, class_="number"),
            element("td", units.share(value, whole), class_="number"),
        )
        for name, value, text in pieces
    )
    return join([element("div", *bar, class_="bar"), element("table", element("tbody", *rows), class_="legend")])


def background(name: str) -> str:
    """In the style sheet's colour for a kind of work or of memory."""
    return f"background:var(--{name.replace(' ', '-')})"


def swatch(name: str) -> Html:
    return element("i", class_="swatch", style=background(name))


def _totals(report: Report) -> Html:
    speed = report.speed
    pairs = [
        ("hardware FLOPs", units.flops(speed.hardware_flops)),
        ("the model's own", units.flops(speed.model_flops)),
        ("HBM traffic", units.gib(speed.hbm_bytes)),
        ("host traffic", units.gib(speed.host_bytes)),
        ("host memory", units.gib(report.memory.host)),
    ]
    return element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in pairs))


def _finding(finding: Finding) -> Html:
    cost = f"{units.seconds(finding.seconds)} a step" if finding.seconds else ""
    mend = element("p", "Mend ", element("code", finding.mend), class_="mend") if finding.mend else Html("")
    return element(
        "article",
        element("h3", finding.kind, element("span", cost, class_="cost")),
        element("p", finding.what),
        element("ul", *(element("li", element("code", place)) for place in finding.where)),
        mend,
    )


def _remedies(report: Report) -> Html:
    if not report.remedies:
        return Html("")
    rows = [
        (element("code", it.override), "fits" if it.fits else "does not fit", _size(it.needed), _time(it.expected))
        for it in report.remedies
    ]
    return element("section", element("h2", "What would make it fit"),
                   table(("change", "verdict", "needs", "step time"), rows))  # fmt: skip


def _operators(report: Report) -> Html:
    rows = [
        (
            element("code", it.module or "(no module)"),
            join([swatch(it.work), it.work]),
            _time(it.seconds),
            Number(units.share(it.seconds, report.speed.expected), it.seconds),
            Number(units.flops(it.flops), it.flops),
            _size(it.hbm_bytes),
            _count(it.count),
        )
        for it in report.operators
    ]
    return table(("module", "work", "seconds", "of the step", "FLOPs", "HBM", "runs"), rows, "sortable")


def _buffers(report: Report) -> Html:
    rows = [
        (
            _size(it.size),
            join([swatch(it.kind), it.kind]),
            _place(it.module, it.line),
            element("code", it.shape),
            element("code", it.name),
        )
        for it in report.memory.largest[:10]
    ]
    return table(("size", "kind", "module", "shape", "HLO"), rows)


def _traffic(report: Report) -> Html:
    rows = [
        (
            it.network,
            ", ".join(it.axes) or "(no axis)",
            it.operation,
            _count(it.count),
            _count(it.asynchronous),
            _size(it.size),
            _time(it.seconds),
            _time(it.exposed),
        )
        for it in sorted(report.traffic, key=lambda it: (it.network, it.axes, it.operation))
    ]
    return table(
        ("network", "axes", "operation", "runs", "asynchronous", "sends", "takes", "exposed"), rows, "sortable"
    )


def _place(module: str, line: str) -> Html:
    return join([element("code", module or "(no module)"), " ", element("span", line, class_="quiet")])


def _definitions(pairs: Iterable[tuple[str, str]]) -> Iterable[Html]:
    for name, value in pairs:
        yield element("div", element("dt", element("code", name)), element("dd", element("code", value)))


def _size(size: int) -> Number:
    return Number(units.gib(size), size)


def _time(seconds: float) -> Number:
    return Number(units.seconds(seconds), seconds)


def _count(count: int) -> Number:
    return Number(f"{count:,}", count)
