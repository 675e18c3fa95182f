"""`wholestep recipes`: what there is to train."""

from __future__ import annotations

import json

import click

from wholestep.cli.options import json_option
from wholestep.config.override import describe, to_dict
from wholestep.recipes.registry import entries, find


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def recipes(context: click.Context, as_json: bool) -> None:
    """List the recipes; `recipes show NAME` prints one whole."""
    if context.invoked_subcommand is not None:
        return
    if as_json:
        click.echo(json.dumps({entry.name: entry.summary for entry in entries().values()}))
        return
    width = max(map(len, entries()))
    for entry in entries().values():
        click.echo(f"{entry.name:{width}}  {entry.summary}")


@recipes.command()
@click.argument("name")
@json_option
@click.pass_context
def show(context: click.Context, name: str, as_json: bool) -> None:
    """Print the whole config tree of the recipe NAME."""
    tree = find(name).function()
    as_json = as_json or (context.parent is not None and context.parent.params["as_json"])
    click.echo(json.dumps(to_dict(tree)) if as_json else describe(tree))
