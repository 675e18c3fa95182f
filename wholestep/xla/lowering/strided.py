"""Operators that address a tensor's storage. A program has none: it is made of the tensor, by the strides that PyTorch
gives it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from wholestep.errors import LoweringError
from wholestep.xla.lowering.registry import Context, lowers

aten = torch.ops.aten


@lowers(aten.as_strided.default, context=True)
def as_strided(
    ctx: Context, x: jax.Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> jax.Array:
    storage, first = _storage(ctx, x)
    start = 0 if storage_offset is None else storage_offset - first
    span = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 in size:
        return jnp.zeros(tuple(size), x.dtype)
    if start < 0 or start + span > storage.size:
        raise LoweringError("as_strided reads what is not part of the tensor that it is given")
    order = _dense_order(size, stride)
    if order is not None:
        part = lax.slice(storage, [start], [start + span]).reshape([size[dim] for dim in order])
        return jnp.transpose(part, np.argsort(order).tolist())
    return storage[_places(size, stride, start)]


@lowers(aten.as_strided_scatter.default, context=True)
def as_strided_scatter(
    ctx: Context,
    x: jax.Array,
    source: jax.Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> jax.Array:
    storage, first = _storage(ctx, x)
    fake = ctx.node.args[0].meta["val"]
    order = _dense_order(fake.shape, fake.stride())
    if order is None:
        raise LoweringError("as_strided_scatter into a tensor whose elements share memory has no lowering to XLA")
    start = 0 if storage_offset is None else storage_offset - first
    written = storage.at[_places(size, stride, start)].set(source)
    return jnp.transpose(written.reshape([x.shape[dim] for dim in order]), np.argsort(order).tolist())


@lowers(aten.resize.default, context=True)
def resize(ctx: Context, x: jax.Array, size: Sequence[int], **options: object) -> jax.Array:
    """What PyTorch leaves open, beyond the elements that were there, is zero."""
    storage, _ = _storage(ctx, x)
    count = math.prod(size)
    return jnp.pad(storage[:count], (0, max(count - storage.size, 0))).reshape(tuple(size))


def _storage(ctx: Context, x: jax.Array) -> tuple[jax.Array, int]:
    """The elements in the order of their places in memory, and the first one's place."""
    fake = ctx.node.args[0].meta["val"]
    kept = [dim for dim, step in enumerate(fake.stride()) if step or x.shape[dim] == 0]
    x = x[tuple(slice(None) if dim in kept else 0 for dim in range(x.ndim))]  # what is expanded is there once
    order = _dense_order(x.shape, [fake.stride()[dim] for dim in kept])
    if order is None:
        raise LoweringError(
            f"as_strided of a tensor with gaps in memory (strides {fake.stride()}) has no lowering to XLA"
        )
    return jnp.transpose(x, order).reshape(-1), fake.storage_offset()


def _dense_order(size: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """The dimensions from the outermost in memory to the innermost; None where there are gaps or overlaps."""
    order = sorted(range(len(size)), key=lambda dim: (stride[dim], size[dim]), reverse=True)
    expected = 1
    for dim in reversed(order):
        if size[dim] != 1 and stride[dim] != expected:
            return None
        expected *= size[dim]
    return order


def _places(size: Sequence[int], stride: Sequence[int], start: int) -> jax.Array:
    places = jnp.full(tuple(size), start, jnp.int32)
    for dim, step in enumerate(stride):
        places += step * lax.broadcasted_iota(jnp.int32, tuple(size), dim)
    return places
