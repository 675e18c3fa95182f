"""Small twins of recipes that are made for a topology: what they are, on eight devices that are anywhere."""

from __future__ import annotations

import dataclasses

from wholestep.config.override import apply
from wholestep.kernels import turned_on
from wholestep.parallel import Mesh
from wholestep.pipeline import Recipe
from wholestep.recipes.registry import entries, find


def nano_twin(name: str) -> Recipe:
    """The recipe called `name` with its family's debug model, short rows, and two replicas for several slices.

    Loops, policies, kernels, precision, optimizer and flags are the recipe's own: what trains here is the same step,
    but for sizes.

    Raises:
        ConfigError: there is no such recipe.
    """
    entry = find(name)
    whole = entry.function()
    debug = next(each for each in entries().values() if each.family is entry.family and "debug" in each.name).function()
    replicas = min(whole.mesh.replicate, 2)
    twin = dataclasses.replace(
        whole,
        model=debug.model,
        data=debug.data,
        schedule=debug.schedule,
        mesh=Mesh(replicate=replicas, fsdp=debug.mesh.size // replicas),
        sequence_length=128,
        batch_size=debug.mesh.size * whole.microbatches,
        steps=debug.steps,
    )
    return apply(twin, turned_on(whole))
