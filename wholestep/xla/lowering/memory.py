"""Moves between device memory and the host's."""

from __future__ import annotations

import jax

from wholestep.graph.memory import to_device, to_host
from wholestep.xla.lowering.registry import lowers


@lowers(to_host)
def lower_to_host(x: jax.Array) -> jax.Array:
    return jax.device_put(x, jax.memory.Space.Host)


@lowers(to_device)
def lower_to_device(x: jax.Array) -> jax.Array:
    return jax.device_put(x, jax.memory.Space.Device)
