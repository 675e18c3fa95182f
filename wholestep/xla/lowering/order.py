"""What is the k-th, and the largest or smallest so far."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten


@lowers(aten.kthvalue.default)
def kthvalue(x: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> list[jax.Array]:
    if x.ndim == 0:
        return [x, jnp.zeros((), jnp.int32)]
    place = lax.slice_in_dim(jnp.argsort(x, axis=dim, stable=True), k - 1, k, axis=dim)
    both = [jnp.take_along_axis(x, place, dim), place.astype(jnp.int32)]
    return both if keepdim else [jnp.squeeze(result, dim) for result in both]


def _running(at_least: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., list[jax.Array]]:
    """The extreme so far and its place, the last of equals; a NaN is more extreme than any number."""

    def later(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        replaced = jnp.isnan(second[0]) | (at_least(second[0], first[0]) & ~jnp.isnan(first[0]))
        return jnp.where(replaced, second[0], first[0]), jnp.where(replaced, second[1], first[1])

    def running(x: jax.Array, dim: int) -> list[jax.Array]:
        if x.ndim == 0:
            return [x, jnp.zeros((), jnp.int32)]
        places = lax.broadcasted_iota(jnp.int32, x.shape, dim % x.ndim)
        return list(lax.associative_scan(later, (x, places), axis=dim))

    return running


lowers(aten.cummax.default)(_running(jnp.greater_equal))
lowers(aten.cummin.default)(_running(jnp.less_equal))
