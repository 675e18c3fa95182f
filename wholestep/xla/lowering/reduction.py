"""Sums, means, extremes, and the softmax family."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import torch

from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten


@lowers(aten.sum.dim_IntList, aten.sum.default, context=True)
def sum_(
    ctx: Context, x: jax.Array, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: object = None
) -> jax.Array:
    return jnp.sum(x, tuple(dim) if dim else None, result_dtype(ctx), keepdims=keepdim)


@lowers(aten.mean.dim, aten.mean.default, context=True)
def mean(
    ctx: Context, x: jax.Array, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: object = None
) -> jax.Array:
    return jnp.mean(x, tuple(dim) if dim else None, result_dtype(ctx), keepdims=keepdim)


def _extreme(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda x, dim=(), keepdim=False: function(x, tuple(dim) or None, keepdims=keepdim)


lowers(aten.amax.default)(_extreme(jnp.max))
lowers(aten.amin.default)(_extreme(jnp.min))


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def any_(x: jax.Array, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> jax.Array:
    return jnp.any(x, tuple(dim) if isinstance(dim, Sequence) else dim, keepdims=keepdim)


@lowers(aten._softmax.default)
def softmax(x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    return jax.nn.softmax(x.astype(jnp.float32) if half_to_float else x, dim)


@lowers(aten._log_softmax.default)
def log_softmax(x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    return jax.nn.log_softmax(x.astype(jnp.float32) if half_to_float else x, dim)
