"""Plan the recipes that are made for a topology, whole: `make plan-recipes`.

    python benchmarks/plan_recipes.py [RECIPE ...]

Each gives wholestep/recipes/CHIP/NAME.json, all that `wholestep plan` says, and a page NAME.md beside it. The table in
docs/time-model.md holds all of them against what is published. Programs that were compiled before are found in the
cache; one that was not takes minutes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from wholestep.errors import WholestepError
from wholestep.kernels import turned_on
from wholestep.plan import units
from wholestep.plan.job import Job
from wholestep.plan.planner import plan_with_progress
from wholestep.plan.published import METRICS, RESULTS, Published
from wholestep.recipes.registry import Entry, entries, find

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "time-model.md"
MARKS = ("<!-- by benchmarks/plan_recipes.py -->", "<!-- end -->")

Plan = dict[str, Any]
"""A report as JSON holds it."""


def path_of(entry: Entry) -> Path:
    """Of the recipe's JSON."""
    chip = str(entry.topology).partition(":")[0]
    return ROOT / "wholestep" / "recipes" / chip / f"{entry.name}.json"


def compared(plan: Plan) -> list[tuple[Published, float]]:
    """What is published of the recipe, with its own value."""
    return [(one, plan["speed"][METRICS[one.metric]]) for one in RESULTS if one.recipe == plan["recipe"]]


def value(metric: str, number: float) -> str:
    """As people write it."""
    return f"{number:.1%}" if metric == "MFU" else f"{number:,.2f} s" if metric == "s/step" else f"{number:,.0f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """In Markdown; all but the first column are aligned to the right."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---", *["---:"] * (len(header) - 1)], *rows)]


def page(entry: Entry, plan: Plan) -> str:
    """The recipe's page."""
    return "\n".join([*_head(entry, plan), *_memory(plan), *_speed(plan), *_schedule(plan)]) + "\n"


def _head(entry: Entry, plan: Plan) -> Iterator[str]:
    docstring = " ".join((entry.function.__doc__ or "").split())
    why = " ".join((sys.modules[entry.function.__module__].__doc__ or "").split())
    recipe = entry.function()
    rules = f", but for {', '.join(f'`{rule}`' for rule in recipe.layers.rules)}" if recipe.layers.rules else ""
    slices = f"{plan['slices']} slices of {plan['topology']}" if plan["slices"] > 1 else plan["topology"]
    versions = ", ".join(f"{name} {version}" for name, version in plan["versions"].items())
    yield from (f"# {entry.name}", "", docstring, "", why, "")
    yield f"{slices}: {plan['chips']:,} chips, {plan['devices']:,} devices, mesh `{plan['mesh']}`."
    yield f"{recipe.batch_size:,} rows of {recipe.sequence_length:,} tokens a step;"
    yield f"`layers.keep={recipe.layers.keep}`{rules};"
    yield f"kernels {', '.join(f'`{kernel}`' for kernel in turned_on(recipe)) or 'none'}. All settings:"
    yield f"`wholestep recipes show {entry.name}`. Flags: {_flags(plan)}."
    yield from ("", f"Predicted from the compiled program by `wholestep plan {entry.name}`; nothing ran. {versions};")
    yield f"compiled in {plan['compile_seconds']:.0f} s."


def _flags(plan: Plan) -> str:
    return ", ".join(f"`{name}={setting}`" for name, setting in plan["options"].items()) or "none"


def _memory(plan: Plan) -> Iterator[str]:
    memory = plan["memory"]
    verdict = "It fits" if memory["fits"] else "**It does not fit**"
    host = f" and {units.gib(memory['host'])} of the host's memory for it" if memory["host"] else ""
    yield from ("", "## Memory", "")
    yield f"{verdict}: {units.gib(memory['needed'])} of the {units.gib(memory['available'])} of a device{host}."
    yield "At the peak:"
    yield from (
        "",
        *table(["kind", "bytes"], [(kind, units.gib(size)) for kind, size in memory["by_kind"].items()]),
        "",
    )
    largest = [
        (b["module"] or b["name"], b["kind"], f"`{b['shape']}`", units.gib(b["size"])) for b in memory["largest"]
    ]
    yield from table(["the largest", "kind", "shape", "bytes"], largest)


def _speed(plan: Plan) -> Iterator[str]:
    speed = plan["speed"]
    yield from ("", "## Speed", "")
    expected, low, high = (units.seconds(speed[case]) for case in ("expected", "low", "high"))
    yield f"{expected} a step ({low} to {high}), MFU {speed['mfu']:.1%},"
    yield f"{speed['tokens_per_second_per_chip']:,.0f} tokens/s/chip, bound by {speed['bound_by']}. The range is"
    yield "that of the time model's assumptions (docs/time-model.md)."
    terms = [(term, units.seconds(each), f"{each / speed['expected']:.1%}") for term, each in speed["terms"].items()]
    yield from ("", *table(["of a step", "seconds", "share"], terms))
    if results := compared(plan):
        yield from ("", "Published of the same model at this scale:", "")
        rows = [
            (
                one.source + (f" ({one.differs})" if one.differs else ""),
                one.metric,
                value(one.metric, one.value),
                value(one.metric, own),
            )
            for one, own in results
        ]
        yield from table(["whose", "what", "measured", "predicted here"], rows)


def _schedule(plan: Plan) -> Iterator[str]:
    rows = [
        (
            f"{t['operation']} over {t['network']} {'+'.join(t['axes']) or 'other'}",
            f"{t['asynchronous']:,} of {t['count']:,}",
            units.gib(t["size"]),
            units.seconds(t["seconds"]),
            units.seconds(t["exposed"]),
        )
        for t in plan["traffic"]
    ]
    yield from ("", "## Schedule", "")
    yield from table(["collectives", "asynchronous", "a device sends", "they take", "it waits"], rows)
    yield ""
    for finding in plan["findings"]:
        cost = f" ({units.seconds(finding['seconds'])})" if finding["seconds"] else ""
        mend = f" Usual mend: `{finding['mend']}`." if finding["mend"] else ""
        where = f" At {'; '.join(finding['where'])}." if finding["where"] else ""
        yield f"- **{finding['kind']}**{cost}: {finding['what']}.{where}{mend}"


def write_comparison(plans: Sequence[Plan]) -> None:
    """The table of predictions beside published results."""
    rows = [
        (
            plan["recipe"],
            one.source.partition(":")[0] + (f": {one.differs}" if one.differs else ""),
            f"{value(one.metric, one.value)} {one.metric if one.metric != 's/step' else ''}".strip(),
            value(one.metric, own),
            f"{own / one.value - 1:+.0%}",
        )
        for plan in plans
        for one, own in compared(plan)
    ]
    text = PAGE.read_text()
    start, end = (text.index(mark) for mark in MARKS)
    lines = table(["recipe", "whose", "published", "predicted", "difference"], rows)
    PAGE.write_text("\n".join([text[: start + len(MARKS[0])], "", *lines, "", text[end:]]))


def main(names: Sequence[str]) -> int:
    """Plan these recipes, or all that are made for a topology. Returns how many failed."""
    console, failed = Console(stderr=True), 0
    made = [entry for entry in entries().values() if entry.topology]
    for entry in [find(name) for name in names] or made:
        try:
            report = plan_with_progress(Job.of(entry.name), console, remedies=False)
        except WholestepError as error:
            console.print(f"{entry.name}: {error}", markup=False)
            failed += 1
            continue
        path = path_of(entry)
        path.write_text(json.dumps(report.to_dict(), indent=1) + "\n")
        path.with_suffix(".md").write_text(page(entry, report.to_dict()))
        console.print(f"{entry.name}: {units.gib(report.memory.needed)}, {units.seconds(report.speed.expected)} a step")
    write_comparison([json.loads(path_of(entry).read_text()) for entry in made if path_of(entry).exists()])
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
