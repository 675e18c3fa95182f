"""A state whose layers are stacked, and the same state with a value for each layer: what checkpoints hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from wholestep.graph.step import StepGraph, Value
from wholestep.xla.program import State, sharding


def unstacked_values(step: StepGraph) -> list[Value]:
    """The state's values with those of stacked layers apart."""
    return [each for value in step.state() for each in value.unstacked()]


def unstack(state: State, step: StepGraph, mesh: jax.sharding.Mesh) -> State:
    """The state with an array for each layer. What is not stacked is the same array; the rest are copies."""
    apart: State = {}
    for value in step.state():
        layers, whole = value.unstacked(), state[value.name]
        if value.memory == "host":
            whole = jax.device_put(whole, sharding(dataclasses.replace(value, memory="device"), mesh))
        if not value.members:
            apart[value.name] = whole
            continue
        take = jax.jit(lambda stacked, i: stacked[i], out_shardings=sharding(layers[0], mesh))
        for i, layer in enumerate(layers):
            apart[layer.name] = take(whole, i)
    return apart


def stack(apart: Mapping[str, jax.Array], step: StepGraph, mesh: jax.sharding.Mesh) -> State:
    """The state as the step takes it, from an array for each layer."""
    state: State = {}
    for value in step.state():
        arrays = [apart[layer.name] for layer in value.unstacked()]
        on_device = sharding(dataclasses.replace(value, memory="device"), mesh)
        together = jax.jit(lambda *layers: jnp.stack(layers), out_shardings=on_device)
        whole = together(*arrays) if value.members else arrays[0]
        state[value.name] = jax.device_put(whole, sharding(value, mesh)) if value.memory == "host" else whole
    return state
