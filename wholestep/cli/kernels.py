"""`wholestep kernels`: what can be put in place of a model's plain blocks."""

from __future__ import annotations

import json

import click

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
    for row in rows:
        click.echo(f"{row['name']}, for {row['replaces']}: {row['summary']}\n    --set {row['setting']}")
