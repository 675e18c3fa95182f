"""The numbers that a program's random operators draw (see `wholestep.graph.random`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from wholestep.graph.random import Draw

Sample = Callable[..., jax.Array]
"""`(key, shape, *parameters) -> numbers` of that shape."""


@dataclass(frozen=True)
class Draws:
    """Where the nodes of a graph draw from.

    Attributes:
        key: of the program; None where it has none.
        container: a number for the container of the layers that the graph holds.
        layer: place of the first of them; a traced integer in a loop.
        first: what the numbers of draws count on from.
        part: which part of the batch the graph works on, counted over devices and microbatches; None where all of them
            draw the same.
    """

    key: jax.Array | None
    container: int = 0
    layer: jax.Array | int = 0
    first: jax.Array | int = 0
    part: jax.Array | int | None = None

    def of_layers(self, container: int, layer: jax.Array | int) -> Draws:
        """For a graph that holds the layers of this container from this one on."""
        return dataclasses.replace(self, container=container, layer=layer, first=0)

    def of_part(self, index: jax.Array, parts: int) -> Draws:
        """For a graph that works on one of `parts` equal parts of these rows."""
        return self if self.part is None else dataclasses.replace(self, part=self.part * parts + index)

    def sample(self, draw: Draw, shape: tuple[int, ...], sample: Sample, *parameters: jax.Array) -> jax.Array:
        """What a node draws, in a program that has a key. Each row of a part of a batch, its first dimension, has a key
        of its own, so that rows draw the same however the batch is split; a scalar is one draw for all.

        Args:
            draw: of the node.
            shape: of what is drawn.
            sample: draws it.
            parameters: of each number's distribution, of that shape.
        """
        assert self.key is not None
        key = self.key
        for number in (self.container, self.layer + draw.position, self.first + draw.number):
            key = jax.random.fold_in(key, number)
        if self.part is None or not shape:
            return sample(key, shape, *parameters)
        rows = self.part * shape[0] + jnp.arange(shape[0])
        return jax.vmap(lambda row, *own: sample(jax.random.fold_in(key, row), shape[1:], *own))(rows, *parameters)
