"""`wholestep flags`: the TPU compiler's flags that are known here."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.console import Console

from wholestep.cli.options import json_option
from wholestep.xla.flag_sets import SETS
from wholestep.xla.known_flags import ALL_CHIPS, FLAGS


@click.command()
@json_option
def flags(as_json: bool) -> None:
    """List sets of compiler flags and the flags, for `--set flags=SET,FLAG=VALUE`."""
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
