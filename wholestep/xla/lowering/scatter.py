"""Operators that read or write elements at places that other tensors name.

PyTorch raises for a place that does not exist. A program cannot: reading there gives NaN (the smallest integer), or the
nearest element; writing there does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from wholestep.errors import LoweringError
from wholestep.xla.lowering.creation import filling
from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten

Places = tuple[jax.Array | slice, ...]

_NAMES = {"add": "sum", "multiply": "prod"}  # what `scatter` calls what `scatter_reduce` does


@lowers(aten.gather.default)
def gather(x: jax.Array, dim: int, index: jax.Array, *, sparse_grad: bool = False) -> jax.Array:
    if not index.size:
        return jnp.zeros(index.shape, x.dtype)
    rows = jnp.atleast_1d(index)
    shape = list(rows.shape)
    shape[dim] = jnp.atleast_1d(x).shape[dim]
    part = lax.slice(jnp.atleast_1d(x), [0] * len(shape), shape)
    return jnp.take_along_axis(part, rows, dim).reshape(index.shape)


@lowers(aten.index_select.default)
def index_select(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    taken = jnp.take(jnp.atleast_1d(x), jnp.atleast_1d(index), axis=dim)
    return taken if x.ndim else taken.reshape(())


@lowers(aten.take.default)
def take(x: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take(x.reshape(-1), index)


@lowers(aten.put.default)
def put(x: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False) -> jax.Array:
    how = "sum" if accumulate else "set"
    return _write(x.reshape(-1), (index.reshape(-1),), source.reshape(-1), how).reshape(x.shape)


@lowers(aten.scatter.src, aten.scatter.value)
def scatter(x: jax.Array, dim: int, index: jax.Array, source: jax.Array | float) -> jax.Array:
    return _scatter(x, dim, index, source, "set")


@lowers(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with(x: jax.Array, dim: int, index: jax.Array, source: jax.Array | float, *, reduce: str) -> jax.Array:
    return _scatter(x, dim, index, source, _NAMES[reduce])


@lowers(aten.scatter_add.default)
def scatter_add(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    return _scatter(x, dim, index, source, "sum")


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    x: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, *, include_self: bool = True
) -> jax.Array:
    return _scatter(x, dim, index, source, reduce, include_self)


@lowers(aten.index_add.default)
def index_add(x: jax.Array, dim: int, index: jax.Array, source: jax.Array, *, alpha: float = 1) -> jax.Array:
    return _write_slices(x, dim, index, source if alpha == 1 else (source * alpha).astype(x.dtype), "sum")


@lowers(aten.index_copy.default)
def index_copy(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    return _write_slices(x, dim, index, source, "set")


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(x: jax.Array, dim: int, index: jax.Array, value: jax.Array | float) -> jax.Array:
    value = value.astype(x.dtype) if isinstance(value, jax.Array) else filling(value, x.dtype)
    return _write_slices(x, dim, index, value, "set")


@lowers(aten.index_reduce.default)
def index_reduce(
    x: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, *, include_self: bool = True
) -> jax.Array:
    return _write_slices(x, dim, index, source, reduce, include_self)


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    x: jax.Array, indices: Sequence[jax.Array | None], values: jax.Array, accumulate: bool = False
) -> jax.Array:
    how = "sum" if accumulate else "set"
    masks = [(dim, index.astype(bool)) for dim, index in enumerate(indices) if _is_mask(index)]
    if not masks:
        return _write(x, _slices(indices), values, how)
    if len(masks) == 1 and sum(index is not None for index in indices) == 1:
        return _put_where(x, *masks[0], values, how)
    lengths = {index.shape[-1] for index in indices if index is not None and not _is_mask(index) and index.ndim}
    lengths |= {values.shape[0]} if values.ndim else set()
    count = max(lengths, default=1)  # as many elements as a mask picks: no more, or PyTorch refuses it
    if count == 1:
        raise LoweringError("index_put with several masks has no lowering to XLA unless a shape says what they pick")
    places: list[jax.Array | None] = []
    for index in indices:
        places += jnp.nonzero(index.astype(bool), size=count) if _is_mask(index) else [index]
    return _write(x, _slices(places), values, how)


def _put_where(x: jax.Array, dim: int, mask: jax.Array, values: jax.Array, how: str) -> jax.Array:
    """`values` where a mask over the dimensions from `dim` on is true: of one shape for all, or one after the other."""
    after = x.ndim - dim - mask.ndim
    picked = values.ndim - 1 - after  # the dimension of `values` along which elements are picked
    if picked >= 0 and values.shape[picked] != 1:
        places = jnp.nonzero(mask, size=values.shape[picked], fill_value=np.iinfo(np.int32).max)
        return _write(x, (*[slice(None)] * dim, *places), values, how)
    if picked >= 0:
        values = values.reshape(*values.shape[:picked], *[1] * mask.ndim, *values.shape[picked + 1 :])
    where = mask.reshape(*mask.shape, *[1] * after)
    return jnp.where(where, x + values if how == "sum" else values, x).astype(x.dtype)


@lowers(aten._unsafe_masked_index.default)
def masked_index(x: jax.Array, mask: jax.Array, indices: Sequence[jax.Array | None], fill: float) -> jax.Array:
    return jnp.where(mask, x.at[_slices(indices)].get(mode="clip"), jnp.asarray(fill, x.dtype))


@lowers(aten._unsafe_masked_index_put_accumulate.default)
def masked_index_put_accumulate(
    x: jax.Array, mask: jax.Array, indices: Sequence[jax.Array | None], values: jax.Array
) -> jax.Array:
    ends = [n - 1 for n in x.shape]
    places = [None if i is None else jnp.clip(i, -end - 1, end) for i, end in zip(indices, ends, strict=False)]
    return _write(x, _slices(places), jnp.where(mask, values, jnp.zeros((), x.dtype)), "sum")


@lowers(aten.masked_scatter.default)
def masked_scatter(x: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    shape = jnp.broadcast_shapes(x.shape, mask.shape)
    if not source.size:
        return jnp.broadcast_to(x, shape)
    return jnp.where(mask, jnp.take(source.reshape(-1), _number(mask, shape), mode="clip"), x)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad: jax.Array, mask: jax.Array, sizes: Sequence[int]) -> jax.Array:
    count = int(np.prod(sizes))
    places = jnp.where(mask, _number(mask, grad.shape), count)
    return jnp.zeros(count, grad.dtype).at[places].set(grad, mode="drop").reshape(sizes)


@lowers(aten.nonzero_static.default)
def nonzero_static(x: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    if not x.ndim or not x.size:
        return jnp.full((size, x.ndim), fill_value, jnp.int32)
    return jnp.stack(jnp.nonzero(x, size=size, fill_value=fill_value), 1).astype(jnp.int32)


def _number(mask: jax.Array, shape: Sequence[int]) -> jax.Array:
    """How many elements are true before each."""
    flat = jnp.broadcast_to(mask, shape).reshape(-1)
    return (jnp.cumsum(flat, dtype=jnp.int32) - 1).reshape(shape)


def _is_mask(index: jax.Array | None) -> TypeGuard[jax.Array]:
    return index is not None and index.dtype in (jnp.bool_, jnp.uint8)


def _slices(indices: Sequence[jax.Array | None]) -> Places:
    return tuple(slice(None) if index is None else index for index in indices)


def _scatter(
    x: jax.Array, dim: int, index: jax.Array, source: jax.Array | float, how: str, include_self: bool = True
) -> jax.Array:
    """Write each element of `source`, as far as `index` goes, at its own place but for `dim`, which `index` says."""
    if not index.size:
        return x
    rows, whole = jnp.atleast_1d(index), jnp.atleast_1d(x)
    places = [lax.broadcasted_iota(jnp.int32, rows.shape, i) for i in range(rows.ndim)]
    places[dim] = rows
    values = jnp.asarray(source).astype(x.dtype)
    if values.ndim:
        values = lax.slice(values, [0] * rows.ndim, rows.shape)
    return _write(whole, tuple(places), values, how, include_self).reshape(x.shape)


def _write_slices(
    x: jax.Array, dim: int, index: jax.Array, source: jax.Array, how: str, include_self: bool = True
) -> jax.Array:
    """Write each slice of `source` along `dim`, or one element, at the place along it that `index` says."""
    whole = jnp.atleast_1d(x)
    values = source if not source.ndim and how == "set" else jnp.atleast_1d(source)
    places = (*[slice(None)] * (dim % whole.ndim), jnp.atleast_1d(index))
    return _write(whole, places, values, how, include_self).reshape(x.shape)


def _write(x: jax.Array, places: Places, values: jax.Array, how: str, include_self: bool = True) -> jax.Array:
    """What several values at one place come to: `set` leaves open which of them stays."""
    if x.dtype == jnp.bool_ and how != "set":  # sums and products of bools are true or false
        numbers = _write(x.astype(jnp.int32), places, values.astype(jnp.int32), how, include_self)
        return numbers != 0
    values = values.astype(x.dtype)
    if how in _JOINED and all(isinstance(place, slice) or place.size == 1 for place in places):
        return _write_at_one_place(x, places, values, how if include_self else "set")
    if how == "set":
        return x.at[places].set(values)
    if not include_self:
        x = x.at[places].set(_neutral(how, x.dtype))
    if how in ("sum", "mean"):
        total = x.at[places].add(values)
        return total if how == "sum" else _divided(total, places, values, include_self)
    at = x.at[places]
    return {"prod": at.multiply, "amax": at.max, "amin": at.min}[how](values)


_JOINED: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "set": lambda x, value: value,
    "sum": jnp.add,
    "prod": jnp.multiply,
    "amax": jnp.maximum,
    "amin": jnp.minimum,
}


def _write_at_one_place(x: jax.Array, places: Places, values: jax.Array, how: str) -> jax.Array:
    """As a choice: XLA would make it an update in place (`wholestep.xla.blocks`)."""
    values = jnp.broadcast_to(values, jax.eval_shape(lambda x: x[places], x).shape)
    chosen, block = jnp.ones((), jnp.bool_), list(x.shape)
    for dim, place in enumerate(places):
        if not isinstance(place, slice):
            index = place.reshape(())
            chosen &= lax.broadcasted_iota(index.dtype, x.shape, dim) == jnp.where(
                index < 0, index + x.shape[dim], index
            )
            block[dim] = 1
    return jnp.where(chosen, _JOINED[how](x, values.reshape(block)), x)


def _divided(total: jax.Array, places: Places, values: jax.Array, include_self: bool) -> jax.Array:
    counted = jnp.int32 if total.dtype.kind in "iu" else jnp.float32
    count = jnp.full(total.shape, int(include_self), counted).at[places].add(jnp.ones(values.shape, counted))
    count = jnp.maximum(count, 1)
    if counted == jnp.int32:
        return jnp.floor_divide(total, count.astype(total.dtype))
    return (total / count).astype(total.dtype)


def _neutral(how: str, dtype: np.dtype) -> float:
    if how in ("sum", "mean", "prod"):
        return int(how == "prod")
    if not jnp.issubdtype(dtype, jnp.integer):
        return -np.inf if how == "amax" else np.inf
    limits = jnp.iinfo(dtype)
    return int(limits.min if how == "amax" else limits.max)
