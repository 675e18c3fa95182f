"""The first state of a run, made where it will live: no device and no host ever holds a whole parameter set."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wholestep.graph.initialize import Initializer
from wholestep.graph.step import StepGraph, Value
from wholestep.xla.dtypes import carried
from wholestep.xla.interpret import Interpreter, check_operators
from wholestep.xla.program import State, sharding


def initialize_state(
    step: StepGraph, initializers: Mapping[str, Initializer], mesh: jax.sharding.Mesh, seed: int
) -> State:
    """Every state value of `step`: parameters and buffers from their initializers, the optimizer's slots zero.

    Each value is computed by a program that is sharded like the value, so that a device makes its own shard; values
    whose programs are alike share an executable. Random draws depend on `seed` and the tensor alone: every mesh gets
    the same parameters, bit for bit.
    """
    programs: dict[Hashable, Callable[[jax.Array, int], jax.Array]] = {}
    key = jax.random.key(seed)
    state: State = {}
    for value in step.state():
        if value.kind == "optimizer":
            state[value.name] = _zeros(value, mesh)
            continue
        initializer = initializers[value.name.partition("/")[2]]
        fingerprint = (initializer.fingerprint, value.shape, value.placement)
        if fingerprint not in programs:
            programs[fingerprint] = _program(initializer, value, mesh)
        state[value.name] = programs[fingerprint](key, initializer.index)
    return state


def _zeros(value: Value, mesh: jax.sharding.Mesh) -> jax.Array:
    def shard(index: tuple[slice, ...]) -> np.ndarray:
        shape = [len(range(*part.indices(size))) for part, size in zip(index, value.shape, strict=True)]
        return np.zeros(shape, carried(value.dtype))

    return jax.make_array_from_callback(value.shape, sharding(value, mesh), shard)


def _program(initializer: Initializer, value: Value, mesh: jax.sharding.Mesh) -> Callable[[jax.Array, int], Any]:
    """`(key, index) -> value`, compiled for the value's own sharding."""
    check_operators(initializer.module)

    def make(key: jax.Array, index: jax.Array) -> jax.Array:
        (whole,) = Interpreter(jax.random.fold_in(key, index)).run(initializer.module)
        if value.shape and not whole.ndim:
            whole = whole.reshape(1)  # a scalar parameter is stored as a vector
        return jnp.pad(whole, [(0, stored - size) for stored, size in zip(value.shape, whole.shape, strict=True)])

    return jax.jit(make, out_shardings=sharding(value, mesh))
