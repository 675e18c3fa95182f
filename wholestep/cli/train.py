"""`wholestep train`: run a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from wholestep.cli.options import json_option
from wholestep.train.launch import DEFAULT_RECIPE, Options, launch
from wholestep.train.summary import summary_table


@click.command()
@click.argument("recipe", required=False, metavar=f"[RECIPE={DEFAULT_RECIPE}]")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one value of the recipe.")
@click.option("--steps", type=int, help="Optimizer steps; the schedule ends there too.")
@click.option("--mesh", help="Devices along each axis, as in fsdp=8 or replicate=2,fsdp=4.")
@click.option("--data", help="stdlib, a folder or glob of text, JSONL or Parquet, or a Hugging Face dataset id.")
@click.option("--tokenizer", help="A folder or Hugging Face id; without one, a BPE is trained on the data.")
@click.option("--init", type=click.Path(path_type=Path), help="Start from this Hugging Face model folder.")
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder; a new one under runs/ by default.")
@click.option("--resume", is_flag=True, help="Continue the run in --out from its last checkpoint.")
@click.option("--profile", is_flag=True, help="Record a trace of a few steps for XProf or TensorBoard.")
@json_option
def train(as_json: bool, **options: Any) -> None:
    """Train RECIPE and print what it came to."""
    summary = launch(Options(**options), Console(stderr=True))
    if as_json:
        click.echo(json.dumps(summary))
    else:
        Console().print(summary_table(summary))
