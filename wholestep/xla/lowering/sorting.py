"""What sorts, and what looks up in what is sorted. NaNs are larger than everything, as in PyTorch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten


@lowers(aten.sort.default)
def sort(x: jax.Array, dim: int = -1, descending: bool = False) -> list[jax.Array]:
    if not x.ndim:
        return [x, jnp.zeros((), jnp.int32)]
    places = jnp.argsort(x, axis=dim, stable=True, descending=descending)
    return [jnp.take_along_axis(x, places, dim), places.astype(jnp.int32)]


@lowers(aten.sort.stable)
def sort_stable(x: jax.Array, *, stable: bool | None, dim: int = -1, descending: bool = False) -> list[jax.Array]:
    return sort(x, dim, descending)


@lowers(aten.topk.default)
def topk(x: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[jax.Array]:
    moved = jnp.moveaxis(jnp.atleast_1d(x), dim, -1)
    if largest and x.ndim and x.dtype != jnp.bool_:
        values, places = lax.top_k(moved, k)
    else:
        places = jnp.argsort(moved, axis=-1, stable=True, descending=largest)[..., :k]
        values = jnp.take_along_axis(moved, places, -1)
    if not x.ndim:  # of its one element, one or none: PyTorch gives both without dimensions
        return [x, jnp.zeros((), jnp.int32)]
    return [jnp.moveaxis(values, -1, dim), jnp.moveaxis(places, -1, dim).astype(jnp.int32)]


def _at_rank(x: jax.Array, rank: jax.Array | int, dim: int, keepdim: bool) -> list[jax.Array]:
    """The element at this place, counted from 0, of the sorted slices along `dim`; and where it is."""
    values, places = sort(x, dim)
    if not x.ndim:
        return [values, places]
    shape = [1 if i == dim % x.ndim else n for i, n in enumerate(x.shape)]
    ranks = jnp.broadcast_to(rank, shape)
    picked = [jnp.take_along_axis(each, ranks, dim) for each in (values, places)]
    return picked if keepdim else [jnp.squeeze(each, dim) for each in picked]


@lowers(aten.kthvalue.default)
def kthvalue(x: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> list[jax.Array]:
    return _at_rank(x, k - 1, dim, keepdim)


@lowers(aten.median.dim)
def median_along(x: jax.Array, dim: int, keepdim: bool = False) -> list[jax.Array]:
    """The lower one of two; a NaN, the first, where there is any."""
    if not x.ndim:
        return sort(x)
    nans = jnp.sum(x != x, dim, keepdims=True, dtype=jnp.int32)
    length = x.shape[dim]
    return _at_rank(x, jnp.where(nans > 0, length - nans, (length - 1) // 2), dim, keepdim)


@lowers(aten.nanmedian.dim)
def nanmedian_along(x: jax.Array, dim: int, keepdim: bool = False) -> list[jax.Array]:
    if not x.ndim:
        return sort(x)
    numbers = jnp.sum(x == x, dim, keepdims=True, dtype=jnp.int32)
    return _at_rank(x, jnp.maximum(numbers - 1, 0) // 2, dim, keepdim)


@lowers(aten.median.default)
def median(x: jax.Array) -> jax.Array:
    return median_along(x.reshape(-1), 0)[0] if x.size else jnp.asarray(jnp.nan, x.dtype)


@lowers(aten.nanmedian.default)
def nanmedian(x: jax.Array) -> jax.Array:
    return nanmedian_along(x.reshape(-1), 0)[0] if x.size else jnp.asarray(jnp.nan, x.dtype)


@lowers(aten.mode.default)
def mode(x: jax.Array, dim: int = -1, keepdim: bool = False) -> list[jax.Array]:
    """The smallest of what is there most often, and where it is last."""
    if not x.ndim:
        return sort(x)
    axis = dim % x.ndim
    values, _ = sort(x, axis)
    place = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    before = jnp.roll(values, 1, axis)
    starts = lax.cummax(jnp.where((values != before) | (place == 0), place, 0), axis)
    rank = jnp.argmax(place - starts, axis, keepdims=True)
    value = jnp.take_along_axis(values, rank, axis)
    same = (x == value) | ((x != x) & (value != value))
    last = jnp.max(jnp.where(same, place, 0), axis, keepdims=True)
    return [value, last] if keepdim else [jnp.squeeze(value, axis), jnp.squeeze(last, axis)]


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar, context=True)
def searchsorted(
    ctx: Context,
    edges: jax.Array,
    values: jax.Array | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    side = side or ("right" if right else "left")
    if sorter is not None:
        edges = jnp.take_along_axis(edges, sorter, -1)
    values = jnp.asarray(values)
    met = jnp.promote_types(edges.dtype, values.dtype)
    edges, values = edges.astype(met), values.astype(met)
    if not edges.size or not values.size:
        return jnp.zeros(values.shape, result_dtype(ctx))
    if edges.ndim == 1:
        return jnp.searchsorted(edges, values, side=side).astype(result_dtype(ctx))
    shape = values.shape
    edges, values = edges.reshape(-1, edges.shape[-1]), values.reshape(-1, shape[-1])
    found = jax.vmap(lambda edges, values: jnp.searchsorted(edges, values, side=side))(edges, values)
    return found.reshape(shape).astype(result_dtype(ctx))


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar, context=True)
def bucketize(
    ctx: Context, values: jax.Array | float, edges: jax.Array, *, out_int32: bool = False, right: bool = False
) -> jax.Array:
    return searchsorted(ctx, edges, values, right=right)
