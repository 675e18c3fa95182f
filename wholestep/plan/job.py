"""What is to be planned: a recipe as set for a topology."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import jax

from wholestep.config.override import apply
from wholestep.errors import ConfigError
from wholestep.pipeline import Recipe
from wholestep.recipes.registry import find
from wholestep.xla.flags import compiler_options
from wholestep.xla.topologies import topology_chip, topology_mesh


@dataclass(frozen=True, kw_only=True)
class Job:
    """Attributes:
    recipe: name of a registered recipe.
    topology: chip and torus of one slice, `tpu7x:4x4x8`.
    slices: how many.
    overrides: `PATH=VALUE`, applied to the recipe.
    flags: of the compiler, as in `Recipe.flags`, after the recipe's own.
    layers: how many of the model's first layers are compiled; None for all.
    """

    recipe: str
    topology: str
    slices: int = 1
    overrides: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    layers: int | None = None

    @classmethod
    def of(cls, recipe: str, topology: str | None = None, slices: int | None = None, **others: Any) -> Job:
        """A job on the topology that the recipe is made for, unless another is given.

        Raises:
            ConfigError: no such recipe, or it is made for no topology and none is given.
        """
        entry = find(recipe)
        if topology is None and entry.topology is None:
            raise ConfigError(f"{recipe} is made for no topology: give one, as in --topology v6e:2x4")
        own = (entry.topology, entry.slices) if topology is None else (topology, 1)
        return cls(recipe=recipe, topology=str(own[0]), slices=slices or own[1], **others)

    def build(self) -> Recipe:
        """The recipe as set, fitted to the topology and cut to its layers.

        Where its mesh has another number of devices than the topology and nothing set is about the mesh, it is sharded
        within each slice and replicated over slices, with as many rows on a device as before.

        Raises:
            ConfigError: a name or setting is wrong, there are not that many layers, or the step is not one program.
        """
        recipe = apply(find(self.recipe).function(), (*self.fitting(), *self.overrides))
        recipe = dataclasses.replace(recipe, flags=(*recipe.flags, *self.flags))
        compiler_options(recipe.flags, topology_chip(self.topology))  # raises for what is no flag of this chip
        if recipe.layers.execution == "split":
            raise ConfigError(
                "layers.execution=split makes several programs of a step, and plan reads steps of one: plan it with "
                "--set layers.execution=loop, whose layers are the same"
            )
        if self.layers is None:
            return recipe
        whole = len(recipe.model.layers)
        if not 1 <= self.layers <= whole:
            raise ConfigError(f"--layers {self.layers}: {self.recipe} has {whole} layers")
        return apply(recipe, [f"model.layers={self.layers}"])

    def fitting(self) -> tuple[str, ...]:
        """The settings that fit the recipe to the topology; none where it fits or something set is about the mesh."""
        recipe = find(self.recipe).function()
        set_paths = {override.partition("=")[0] for override in self.overrides}
        if recipe.mesh.size == self.devices or any(path.split(".")[0] == "mesh" for path in set_paths):
            return ()
        rows = recipe.batch_size // recipe.mesh.size
        settings = [f"mesh.replicate={self.slices}", f"mesh.fsdp={self.devices // self.slices}"]
        if "batch_size" not in set_paths:
            settings.append(f"batch_size={rows * self.devices}")
        return tuple(settings)

    @property
    def chips(self) -> int:
        """Of all slices."""
        topology_chip(self.topology)  # raises for what is no topology
        sizes = self.topology.partition(":")[2].split("x")
        return math.prod(map(int, sizes)) * self.slices

    @property
    def devices(self) -> int:
        """Of all slices."""
        return self.chips * topology_chip(self.topology).devices

    def mesh(self, recipe: Recipe) -> jax.sharding.Mesh:
        """The topology's devices as the recipe's mesh.

        Raises:
            ConfigError: libtpu is not installed or does not know the topology, or the mesh has another number of
                devices.
        """
        return topology_mesh(self.topology, recipe.mesh, self.slices)

    def with_overrides(self, *overrides: str) -> Job:
        """The same with more set."""
        return dataclasses.replace(self, overrides=(*self.overrides, *overrides))
