"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

C = TypeVar("C", bound=Callable[..., object])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def plan_options(command: C, topology_required: bool = True) -> C:
    """Which topology, and what is changed of the recipe: for commands that compile for TPUs that are not here."""
    topology_help = "Chip and torus of a slice, as in v6e:2x4 or tpu7x:4x4x8."
    for option in (
        click.option("--flag", "flags", multiple=True, metavar="SET|FLAG=VALUE", help="Give the compiler this too."),
        click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one value of the recipe."),
        click.option("--slices", type=int, default=1, show_default=True, help="How many of this topology."),
        click.option("--topology", required=topology_required, help=topology_help),
    ):
        command = option(command)
    return command
