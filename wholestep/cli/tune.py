"""`wholestep tune`: search settings of a recipe that train fastest on a TPU topology, and fit."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status

from wholestep.cli.options import json_option, plan_options
from wholestep.errors import ConfigError
from wholestep.plan.job import Job
from wholestep.plan.space import Space
from wholestep.plan.trials import Trials
from wholestep.plan.tune import tune as search
from wholestep.plan.tune_view import Display, draw_trade, train_command, tuned_view


@click.command()
@click.argument("recipe")
@plan_options
@click.option("--budget", type=float, default=60.0, show_default=True, metavar="MINUTES", help="At most this long.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="By default tunes/RECIPE-TOPOLOGY.")
@json_option
def tune(
    recipe: str,
    topology: str | None,
    slices: int | None,
    overrides: tuple[str, ...],
    flags: tuple[str, ...],
    budget: float,
    out: Path | None,
    as_json: bool,
) -> int:
    """Search mesh, batch, what layers keep, kernels and compiler flags of RECIPE: compile what arithmetic does not rule
    out, keep what fits, rank by predicted tokens/s/chip. What is set here is not searched. Run again, it goes on."""
    if not budget > 0:
        raise ConfigError(f"--budget {budget:g}: minutes, more than 0")
    job = Job.of(recipe, topology, slices, overrides=overrides, flags=flags)
    space = Space.of(job)
    where = f"{job.slices}x{job.topology}" if job.slices > 1 else job.topology
    out = out or Path("tunes") / f"{recipe}-{where.replace(':', '-')}"
    known, console = Trials(out / "tried.jsonl"), Console(stderr=True)
    with Status("", console=console) as status:
        tuned = search(space, known, budget * 60, Display(console, status, budget * 60))
    draw_trade(tuned, f"{recipe} on {where}", out / "trade.png")
    (out / "winner.txt").write_text("".join(f"{setting}\n" for setting in tuned.settings))
    if as_json:
        click.echo(json.dumps(tuned.to_dict()))
    else:
        Console().print(tuned_view(tuned))
        if tuned.best is not None:
            click.echo(f"\n{train_command(recipe, tuned.settings)}")
        click.echo(f"the trade of memory against time is {out / 'trade.png'}")
    return 130 if tuned.stopped == "interrupted" else 0
