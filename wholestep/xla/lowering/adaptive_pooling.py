"""Pooling over windows whose places depend on how many are wanted, or on random numbers; and its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import torch

from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(x: jax.Array, size: Sequence[int]) -> jax.Array:
    values, inside = _adaptive_windows(x.astype(jnp.float32), size)
    return (jnp.sum(jnp.where(inside, values, 0), -1) / np.sum(inside, -1, dtype=np.float32)).astype(x.dtype)


@lowers(aten._adaptive_avg_pool2d_backward.default, context=True)
def adaptive_avg_pool2d_backward(ctx: Context, grad: jax.Array, x: jax.Array) -> jax.Array:
    return jax.vjp(lambda x: adaptive_avg_pool(x, grad.shape[-2:]), x)[1](grad)[0]


@lowers(aten._adaptive_avg_pool3d_backward.default, context=True)
def adaptive_avg_pool3d_backward(ctx: Context, grad: jax.Array, x: jax.Array) -> jax.Array:
    return jax.vjp(lambda x: adaptive_avg_pool(x, grad.shape[-3:]), x)[1](grad)[0]


@lowers(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(x: jax.Array, size: Sequence[int]) -> list[jax.Array]:
    values, inside = _adaptive_windows(x, size)
    extent = x.shape[-len(size) :]
    flat = jnp.arange(math.prod(extent), dtype=jnp.int32).reshape(extent)
    return _largest(jnp.where(inside, values, -jnp.inf), _adaptive_windows(flat, size)[0])


@lowers(aten.adaptive_max_pool2d_backward.default, context=True)
def adaptive_max_pool2d_backward(ctx: Context, grad: jax.Array, x: jax.Array, indices: jax.Array) -> jax.Array:
    return _scattered(ctx, grad, indices, 2)


@lowers(aten.adaptive_max_pool3d_backward.default, context=True)
def adaptive_max_pool3d_backward(ctx: Context, grad: jax.Array, x: jax.Array, indices: jax.Array) -> jax.Array:
    return _scattered(ctx, grad, indices, 3)


@lowers(aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default)
def fractional_max_pool(
    x: jax.Array, kernel: Sequence[int], size: Sequence[int], samples: jax.Array
) -> list[jax.Array]:
    """The windows' starts come from `samples` `[batch, channels, dims]`, one number for each dimension."""
    dims = len(size)
    extent = x.shape[-dims:]
    planes = x.reshape(math.prod(x.shape[:-dims]), *extent)
    drawn = jnp.broadcast_to(samples, (*samples.shape[:2], dims)).reshape(-1, dims)
    # The last dimension has the first sample in two dimensions; in three, the first dimension has it.
    numbers = range(dims - 1, -1, -1) if dims == 2 else range(dims)
    places = [
        _random_starts(drawn[:, number], n, out, width)[:, :, None] + jnp.arange(width, dtype=jnp.int32)
        for number, n, out, width in zip(numbers, extent, size, kernel, strict=True)
    ]
    flat = jnp.zeros((len(planes), *[1] * (2 * dims)), jnp.int32)
    for dim, (place, n) in enumerate(zip(places, extent, strict=True)):
        others = [each for each in range(1, 1 + 2 * dims) if each not in (1 + dim, 1 + dims + dim)]
        flat = flat * n + jnp.expand_dims(place, others)
    flat = flat.reshape(len(planes), math.prod(size) * math.prod(kernel))
    values = jnp.take_along_axis(planes.reshape(len(planes), math.prod(extent)), flat, 1)
    shape = (len(planes), *size, math.prod(kernel))
    largest = _largest(values.reshape(shape), flat.reshape(shape))
    return [each.reshape(*x.shape[:-dims], *size) for each in largest]


@lowers(aten.fractional_max_pool2d_backward.default, aten.fractional_max_pool3d_backward.default, context=True)
def fractional_max_pool_backward(
    ctx: Context, grad: jax.Array, x: jax.Array, kernel: Sequence[int], size: Sequence[int], indices: jax.Array
) -> jax.Array:
    return _scattered(ctx, grad, indices, len(size))


def _random_starts(samples: jax.Array, extent: int, size: int, width: int) -> jax.Array:
    """int32[planes, size] (Graham, "Fractional max-pooling", 2014): steps alike but one, the last at the end."""
    alpha = np.float32(extent - width) / np.float32(max(size - 1, 1))
    steps = jnp.arange(size, dtype=jnp.float32)
    samples = samples.astype(jnp.float32)[:, None]
    starts = jnp.trunc((steps + samples) * alpha) - jnp.trunc(samples * alpha)
    return jnp.where(steps == size - 1, extent - width, starts).astype(jnp.int32)


def _adaptive_windows(x: jax.Array, size: Sequence[int]) -> tuple[jax.Array, np.ndarray]:
    """`([..., *size, places], bool[*size, places])`: what each window over the last dimensions holds, and which of its
    places are its own; the others repeat some element."""
    dims = len(size)
    lead = x.ndim - dims
    masks = []
    for dim, out in enumerate(size):
        axis = lead + 2 * dim  # each dimension before has become two
        extent = x.shape[axis]
        starts = np.arange(out) * extent // out
        ends = -(-(np.arange(1, out + 1) * extent) // out)
        width = int(max(ends - starts, default=0))
        places = starts[:, None] + np.arange(width)
        masks.append(places < ends[:, None])
        if out and extent % out:
            x = jnp.take(x, np.minimum(places, extent - 1).reshape(-1), axis)
        x = x.reshape(*x.shape[:axis], out, width, *x.shape[axis + 1 :])
    order = [*range(lead), *range(lead, x.ndim, 2), *range(lead + 1, x.ndim, 2)]
    inside = reduce(np.logical_and.outer, masks)
    inside = inside.transpose(*range(0, 2 * dims, 2), *range(1, 2 * dims, 2)).reshape(*size, -1)
    return jnp.transpose(x, order).reshape(*x.shape[:lead], *size, inside.shape[-1]), inside


def _largest(values: jax.Array, indices: jax.Array) -> list[jax.Array]:
    """The largest of each window, and its index."""
    place = jnp.argmax(values, -1, keepdims=True)
    indices = jnp.broadcast_to(indices, values.shape)
    return [jnp.take_along_axis(each, place, -1)[..., 0] for each in (values, indices)]


def _scattered(ctx: Context, grad: jax.Array, indices: jax.Array, dims: int) -> jax.Array:
    """Each gradient at its index in the flattened last dimensions of the input."""
    shape = ctx.node.meta["val"].shape
    planes = math.prod(shape[: len(shape) - dims])
    rows = jnp.arange(planes)[:, None]
    total = jnp.zeros((planes, math.prod(shape[len(shape) - dims :])), jnp.float32)
    wanted = (planes, math.prod(grad.shape[-dims:]))
    flat = grad.reshape(wanted).astype(jnp.float32)
    return total.at[rows, indices.reshape(wanted)].add(flat).reshape(shape).astype(result_dtype(ctx))
