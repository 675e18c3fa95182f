"""The first state of a run, made where it will live: no device and no host ever holds a whole parameter set."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

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
        initializer = initializers.get(value.name.partition("/")[2]) if value.kind != "optimizer" else None
        fingerprint = (initializer and initializer.fingerprint, value.shape, value.dtype, value.placement)
        if fingerprint not in programs:
            programs[fingerprint] = _program(initializer, value, mesh)
        state[value.name] = programs[fingerprint](key, initializer.index if initializer else 0)
    return state


def _program(initializer: Initializer | None, value: Value, mesh: jax.sharding.Mesh) -> Callable[[jax.Array, int], Any]:
    """`(key, index) -> value`, compiled for the value's own sharding."""
    if initializer is not None:
        check_operators(initializer.module)

    def make(key: jax.Array, index: jax.Array) -> jax.Array:
        if initializer is None:
            return jnp.zeros(value.shape, carried(value.dtype))
        (whole,) = Interpreter(jax.random.fold_in(key, index)).run(initializer.module)
        if value.shape and not whole.ndim:
            whole = whole.reshape(1)  # a scalar parameter is stored as a vector
        return jnp.pad(whole, [(0, stored - size) for stored, size in zip(value.shape, whole.shape, strict=True)])

    return jax.jit(make, out_shardings=sharding(value, mesh))
