"""Sums, means, extremes, and the softmax family."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import torch

from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten

# Sums and means are cast to their dtype first: given JAX's `dtype=` instead, bf16 would be added up in bf16, where
# otherwise, as in PyTorch, it is added up in fp32 and rounded once.


def _axes(x: jax.Array, dim: Sequence[int] | None) -> tuple[int, ...] | None:
    """No dimensions are all of them; a tensor that has none takes 0 and -1 for one."""
    return tuple(dim) if dim and x.ndim else None


@lowers(aten.sum.dim_IntList, aten.sum.default, context=True)
def sum_(
    ctx: Context, x: jax.Array, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: object = None
) -> jax.Array:
    return jnp.sum(x.astype(result_dtype(ctx)), _axes(x, dim), keepdims=keepdim)


@lowers(aten.mean.dim, aten.mean.default, context=True)
def mean(
    ctx: Context, x: jax.Array, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: object = None
) -> jax.Array:
    return jnp.mean(x.astype(result_dtype(ctx)), _axes(x, dim), keepdims=keepdim)


def _extreme(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda x, dim=(), keepdim=False: function(x, _axes(x, dim), keepdims=keepdim)


lowers(aten.amax.default)(_extreme(jnp.max))
lowers(aten.amin.default)(_extreme(jnp.min))


@lowers(aten.any.default, aten.any.dim, aten.any.dims, context=True)
def any_(ctx: Context, x: jax.Array, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> jax.Array:
    # Unlike the reductions above, PyTorch takes an empty list of dimensions for none; and uint8 stays uint8.
    axes = tuple(dim) if isinstance(dim, Sequence) else dim
    return jnp.any(x, axes if x.ndim else None, keepdims=keepdim).astype(result_dtype(ctx))


@lowers(aten.all.default, aten.all.dim, aten.all.dims, context=True)
def all_(ctx: Context, x: jax.Array, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> jax.Array:
    axes = tuple(dim) if isinstance(dim, Sequence) else dim
    return jnp.all(x, axes if x.ndim else None, keepdims=keepdim).astype(result_dtype(ctx))


@lowers(aten.prod.default, context=True)
def prod(ctx: Context, x: jax.Array, dtype: object = None) -> jax.Array:
    return jnp.prod(x.astype(result_dtype(ctx))).astype(result_dtype(ctx))  # of bool JAX makes integers


@lowers(aten.prod.dim_int, context=True)
def prod_along(ctx: Context, x: jax.Array, dim: int, keepdim: bool = False, dtype: object = None) -> jax.Array:
    product = jnp.prod(x.astype(result_dtype(ctx)), _axes(x, [dim]), keepdims=keepdim)
    return product.astype(result_dtype(ctx))


@lowers(aten.var.correction)
def var(
    x: jax.Array, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> jax.Array:
    axes = _axes(x, dim)
    wide = x if jnp.iscomplexobj(x) else x.astype(jnp.float32)
    squares = jnp.square(jnp.abs(wide - jnp.mean(wide, axes, keepdims=True)))
    count = x.size if axes is None else math.prod(x.shape[axis] for axis in axes)
    freedom = max(count - (1 if correction is None else correction), 0)
    total = jnp.sum(squares, axes, keepdims=keepdim)
    return (total / jnp.float32(freedom)).astype(x.real.dtype)


@lowers(aten.var_mean.correction)
def var_mean(
    x: jax.Array, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> list[jax.Array]:
    average = jnp.mean(x, _axes(x, dim), keepdims=keepdim)
    return [var(x, dim, correction=correction, keepdim=keepdim), average]


@lowers(aten.dist.default)
def dist(x: jax.Array, y: jax.Array, p: float = 2) -> jax.Array:
    difference = (x - y).reshape(-1).astype(jnp.float32)
    return jnp.linalg.norm(difference, p).astype(jnp.promote_types(x.dtype, y.dtype))


def _place(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Where the extreme is: the first of equals, or the first NaN."""

    def place(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        return function(x, dim if x.ndim else None, keepdims=keepdim).astype(jnp.int32)

    return place


def _extreme_and_place(function: Callable[..., jax.Array]) -> Callable[..., list[jax.Array]]:
    def extreme_and_place(x: jax.Array, dim: int, keepdim: bool = False) -> list[jax.Array]:
        if not x.ndim:
            return [x, jnp.zeros((), jnp.int32)]
        places = function(x, dim, keepdims=True)
        found = [jnp.take_along_axis(x, places, dim), places.astype(jnp.int32)]
        return found if keepdim else [jnp.squeeze(each, dim) for each in found]

    return extreme_and_place


lowers(aten.argmax.default)(_place(jnp.argmax))
lowers(aten.argmin.default)(_place(jnp.argmin))
lowers(aten.max.dim)(_extreme_and_place(jnp.argmax))
lowers(aten.min.dim)(_extreme_and_place(jnp.argmin))
lowers(aten.max.default)(jnp.max)
lowers(aten.min.default)(jnp.min)


@lowers(aten._softmax.default, context=True)
def softmax(ctx: Context, x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    return _in_float32(jax.nn.softmax, ctx, x, dim)


@lowers(aten._log_softmax.default, context=True)
def log_softmax(ctx: Context, x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    return _in_float32(jax.nn.log_softmax, ctx, x, dim)


def _in_float32(function: Callable[..., jax.Array], ctx: Context, x: jax.Array, dim: int) -> jax.Array:
    """As PyTorch does: a narrow softmax is rounded once, at its end."""
    return function(x.astype(jnp.float32), dim if x.ndim else ()).astype(result_dtype(ctx))
