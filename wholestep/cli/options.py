"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

C = TypeVar("C", bound=Callable[..., object])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def _flags(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for text in given for name in ([text] if "=" in text else text.split(",")))


def plan_options(command: C) -> C:
    """Which topology, and what is changed of the recipe: for commands that compile for TPUs that are not here."""
    for option in (
        click.option(
            "--flag",
            "flags",
            multiple=True,
            metavar="SET,...|FLAG=VALUE",
            callback=_flags,
            help="Give the compiler this too.",
        ),
        click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one value of the recipe."),
        click.option("--slices", type=click.IntRange(1), help="How many of this topology; 1, or the recipe's own."),
        click.option("--topology", help="Chip and torus of a slice, as in tpu7x:4x4x8; by default the recipe's own."),
    ):
        command = option(command)
    return command
