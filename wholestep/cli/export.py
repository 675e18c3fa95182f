"""`wholestep export`: a trained run as a Hugging Face model."""

from __future__ import annotations

import json
from pathlib import Path

import click

from wholestep.cli.options import json_option
from wholestep.train.export import export_run


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Path(path_type=Path), required=True, help="The folder to make.")
@json_option
def export(directory: Path, target: Path, as_json: bool) -> None:
    """Write the last checkpoint of the run in DIRECTORY as a Hugging Face model."""
    exported = export_run(directory, target)
    click.echo(json.dumps(exported) if as_json else f"step {exported['step']} is in {exported['directory']}")
