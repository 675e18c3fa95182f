"""The first state of a run, made where it will live: no device and no host ever holds a whole parameter set."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from wholestep.graph.initialize import Initializer
from wholestep.graph.step import StepGraph, Value
from wholestep.xla.draws import Draws
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
    programs: dict[Hashable, Callable[..., jax.Array]] = {}
    key = jax.random.key(seed)
    state: State = {}
    for value in step.state():
        if value.kind == "optimizer":
            state[value.name] = _zeros(value, mesh)
            continue
        members = [initializers[each.name.partition("/")[2]] for each in value.unstacked()]
        fingerprint = (tuple(each.fingerprint for each in members), value.shape, value.placement)
        if fingerprint not in programs:
            programs[fingerprint] = _program(members, value, mesh)
        state[value.name] = programs[fingerprint](key, np.asarray([each.index for each in members]))
    return state


def _zeros(value: Value, mesh: jax.sharding.Mesh) -> jax.Array:
    def shard(index: tuple[slice, ...]) -> np.ndarray:
        shape = [len(range(*part.indices(size))) for part, size in zip(index, value.shape, strict=True)]
        return np.zeros(shape, carried(value.dtype))

    return jax.make_array_from_callback(value.shape, sharding(value, mesh), shard)


def _program(members: Sequence[Initializer], value: Value, mesh: jax.sharding.Mesh) -> Callable[..., jax.Array]:
    """`(key, indices of the members) -> value`, compiled for the value's own sharding. A stacked value has a member for
    each layer; if all are made alike, it is made by one loop."""
    alike = len({each.fingerprint for each in members}) == 1
    shape = value.shape[1:] if value.members else value.shape
    for each in members[:1] if alike else members:
        check_operators(each.module)

    def one(key: jax.Array, index: jax.Array, initializer: Initializer) -> jax.Array:
        (whole,) = Interpreter(Draws(jax.random.fold_in(key, index))).run(initializer.module)
        if shape and not whole.ndim:
            whole = whole.reshape(1)  # a scalar parameter is stored as a vector
        missing = [(0, stored - size) for stored, size in zip(shape, whole.shape, strict=True)]
        return jnp.pad(whole, missing) if any(after for _, after in missing) else whole

    def make(key: jax.Array, indices: jax.Array) -> jax.Array:
        if not value.members:
            return one(key, indices[0], members[0])
        if alike:
            return jax.lax.map(lambda index: one(key, index, members[0]), indices)
        return jnp.stack([one(key, indices[i], each) for i, each in enumerate(members)])

    return jax.jit(make, out_shardings=sharding(value, mesh))
