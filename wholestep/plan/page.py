"""A report as one HTML file that needs nothing else: no network, no server, no framework.

Tables and tiles are written here; the two pictures over the step, memory and schedule, are drawn by the scripts in
`page_files/`, which get their data as JSON within the page.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Any, get_args

from wholestep.plan.markup import Html, embedded_json
from wholestep.plan.page_parts import headline, notices, parts
from wholestep.plan.report import Kind, Report, Work

FILES = Path(__file__).parent / "page_files"
SCRIPTS = ("axis.js", "tooltip.js", "memory.js", "lanes.js", "schedule.js", "page.js")


def write_page(report: Report, path: Path) -> None:
    """Writes the page; a reader never sees half of one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(page(report), encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def page(report: Report) -> str:
    """The page's text."""
    return Template(_file("page.html")).substitute(
        parts(report),
        headline=headline(report),
        notices=notices(report),
        style=Html(_file("page.css")),
        data=embedded_json(_picture_data(report)),
        script=Html("\n".join(_file(name) for name in SCRIPTS)),
    )


def _picture_data(report: Report) -> dict[str, Any]:
    """What the scripts draw. The curve is by column, which is a third of its size by row."""
    curve = report.memory.curve
    return {
        "spans": [asdict(span) for span in report.spans],
        "loops": [asdict(loop) for loop in report.loops],
        "works": get_args(Work),
        "memory": {
            "available": report.memory.available,
            "at": [point.at for point in curve],
            "by_kind": {kind: [point.by_kind.get(kind, 0) for point in curve] for kind in get_args(Kind)},
        },
    }


def _file(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")
