"""`wholestep kernels`: what can be put in place of a model's plain blocks."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from wholestep.cli.options import json_option
from wholestep.kernels import KERNELS


@click.command()
@json_option
def kernels(as_json: bool) -> None:
    """List the kernels, what each replaces, and the setting that turns it on."""
    rows = [
        {
            "name": kernel.name,
            "replaces": kernel.replaces.node_name,
            "setting": f"{kernel.path}={kernel.name}",
            "summary": kernel.summary,
        }
        for kernel in KERNELS
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = Table("kernel", "replaces", "what it does, and what --set turns it on", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], row["replaces"], f"{row['summary']}\n[dim]{row['setting']}[/]")
    Console().print(table)
