"""Cumulative operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.lowering.registry import HALVES, Context, lowers, result_dtype

aten = torch.ops.aten


@lowers(aten.cumsum.default, context=True)
def cumsum(ctx: Context, x: jax.Array, dim: int, dtype: object = None) -> jax.Array:
    return _accumulated(jnp.cumsum, x, dim, result_dtype(ctx))


@lowers(aten.cumprod.default, context=True)
def cumprod(ctx: Context, x: jax.Array, dim: int, dtype: object = None) -> jax.Array:
    return _accumulated(jnp.cumprod, x, dim, result_dtype(ctx))


def _accumulated(function: Callable[..., jax.Array], x: jax.Array, dim: int, dtype: Any) -> jax.Array:
    """16-bit floats add up in fp32, and are rounded once."""
    x = x.astype(dtype)
    wide = x.astype(jnp.float32) if dtype in HALVES else x
    return function(wide, dim).astype(dtype) if x.ndim else x


@lowers(aten.logcumsumexp.default)
def logcumsumexp(x: jax.Array, dim: int) -> jax.Array:
    if not x.ndim:
        return x
    return lax.cumlogsumexp(x.astype(jnp.float32), dim % x.ndim).astype(x.dtype)


def _running(function: Callable[..., jax.Array]) -> Callable[..., list[jax.Array]]:
    def running(x: jax.Array, dim: int) -> list[jax.Array]:
        if not x.ndim:
            return [x, jnp.zeros((), jnp.int32)]
        axis = dim % x.ndim
        numbers = x.astype(jnp.int8) if x.dtype == jnp.bool_ else x
        values = function(numbers, axis)
        # Where it is reached: of equal elements the last so far, and so of NaNs.
        reached = (numbers == values) | (numbers != numbers)
        places = lax.cummax(jnp.where(reached, lax.broadcasted_iota(jnp.int32, x.shape, axis), 0), axis)
        return [values.astype(x.dtype), places]

    return running


lowers(aten.cummax.default)(_running(lax.cummax))
lowers(aten.cummin.default)(_running(lax.cummin))
