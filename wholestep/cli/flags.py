"""`wholestep flags`: the TPU compiler's flags that are known here, and what they change in a recipe's step."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.console import Console

from wholestep.cli.options import json_option, plan_options
from wholestep.plan.flag_effects import effects, effects_view, sets_for
from wholestep.plan.job import Job
from wholestep.plan.progress import compiling
from wholestep.xla.flag_sets import SETS
from wholestep.xla.known_flags import ALL_CHIPS, FLAGS


@click.command()
@click.argument("recipe", required=False)
@plan_options
@click.option("--layers", type=int, help="Compile this many layers only; all figures are then of those.")
@click.option("--sets", metavar="SET,...", default="", help="Measure these sets only.")
@json_option
def flags(
    recipe: str | None,
    topology: str | None,
    slices: int | None,
    overrides: tuple[str, ...],
    flags: tuple[str, ...],
    layers: int | None,
    sets: str,
    as_json: bool,
) -> None:
    """List sets of compiler flags and the flags, for `--set flags=SET,FLAG=VALUE`. With RECIPE, compile it
    without and with each set instead, and show what changes."""
    if recipe is None:
        _list(as_json)
        return
    job = Job.of(recipe, topology, slices, overrides=overrides, flags=flags, layers=layers)
    chosen = sets_for(job.topology, [name.strip() for name in sets.split(",") if name.strip()])
    with compiling(Console(stderr=True)) as show:
        found = effects(job, chosen, show)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found]))
    else:
        Console().print(effects_view(found))


def _list(as_json: bool) -> None:
    if as_json:
        sets, known = ([dataclasses.asdict(entry) for entry in table.values()] for table in (SETS, FLAGS))
        click.echo(json.dumps({"sets": sets, "flags": known}))
        return
    console = Console(highlight=False, soft_wrap=True)
    for entry in SETS.values():
        console.print(f"{entry.name}{_chips(entry.chips)}: {entry.purpose}")
        for name, value in entry.values.items():
            console.print(f"    {name}={value}")
    console.print()
    for flag in FLAGS.values():
        takes = flag.takes if isinstance(flag.takes, str) else "|".join(flag.takes)
        console.print(f"{flag.name} ({takes}){_chips(flag.chips)}: {flag.purpose}")
        for word, others in (("needs", flag.needs), ("conflicts with", flag.conflicts)):
            for other, value in others.items():
                console.print(f"    {word} {other}={value}")


def _chips(names: tuple[str, ...]) -> str:
    return "" if names == ALL_CHIPS else f", {' '.join(names)}"
