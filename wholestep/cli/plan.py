"""`wholestep plan`: what a recipe's step does on a TPU topology, from the real compiler."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from rich.console import Console

from wholestep.cli.options import json_option, plan_options
from wholestep.errors import ConfigError
from wholestep.plan.compare import comparison_view
from wholestep.plan.job import Job
from wholestep.plan.page import write_page
from wholestep.plan.planner import plan_with_progress
from wholestep.plan.show import report_view


@click.command()
@click.argument("recipe")
@plan_options
@click.option("--layers", type=int, help="Compile this many layers only; all figures are then of those.")
@click.option("--against", metavar="RECIPE", help="Plan this recipe too, with the same options, and compare.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with pictures.")
@json_option
def plan(
    recipe: str,
    topology: str | None,
    slices: int | None,
    overrides: tuple[str, ...],
    flags: tuple[str, ...],
    layers: int | None,
    against: str | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Compile RECIPE's training step for TPUs that are not here; say whether it fits, how fast it is, what it waits
    for. The figures are predicted from the compiled program."""
    if html is not None and not os.access(html.parent, os.W_OK):
        raise ConfigError(f"--html {html}: nothing can be written in the folder {html.parent}")
    jobs = [
        Job.of(name, topology, slices, overrides=overrides, flags=flags, layers=layers)
        for name in (recipe, against)
        if name is not None
    ]
    for job in jobs:
        job.build()
    progress = Console(stderr=True)
    reports = [plan_with_progress(job, progress, remedies=against is None) for job in jobs]
    if as_json:
        whole = reports[0].to_dict()
        click.echo(json.dumps({**whole, "against": reports[1].to_dict()} if against else whole))
    else:
        Console().print(comparison_view(*reports) if against else report_view(reports[0]))
    if html is not None:
        write_page(reports[0], html)
        progress.print(f"the page of {recipe} is {html}", highlight=False, markup=False, soft_wrap=True)
