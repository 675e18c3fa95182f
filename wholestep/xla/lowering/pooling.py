"""Pooling over windows at regular places, and its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from wholestep.xla.lowering.registry import Context, lowers

aten = torch.ops.aten


@dataclass(frozen=True)
class _Windows:
    """Windows over the last dimensions of a tensor. Each field has one value for each of these dimensions.

    Attributes:
        size: how many windows.
        extent: of the tensor.
    """

    size: tuple[int, ...]
    extent: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def reach(self) -> list[int]:
        """How far the windows go, from the start of the padding to the end of the last window."""
        return [
            (size - 1) * stride + dilation * (kernel - 1) + 1
            for size, stride, dilation, kernel in zip(self.size, self.stride, self.dilation, self.kernel, strict=True)
        ]

    def padded(self, x: jax.Array, fill: float) -> jax.Array:
        """The tensor as far as the windows reach."""
        ends = [(low, r - n - low, 0) for low, r, n in zip(self.padding, self.reach(), self.extent, strict=True)]
        return lax.pad(x, jnp.asarray(fill, x.dtype), [(0, 0, 0)] * (x.ndim - len(ends)) + ends)

    def offsets(self) -> Iterator[tuple[int, ...]]:
        """The places in a window, as distances from its start."""
        for place in product(*map(range, self.kernel)):
            yield tuple(at * by for at, by in zip(place, self.dilation, strict=True))

    def positions(self, offset: Sequence[int]) -> tuple[jax.Array, jax.Array]:
        """`(int32[size], bool[size])`: where this place of each window is in the flattened tensor, and whether it is in
        it, not in the padding."""
        flat, inside = jnp.zeros(self.size, jnp.int32), jnp.ones(self.size, jnp.bool_)
        for dim, (by, low, at, n) in enumerate(zip(self.stride, self.padding, offset, self.extent, strict=True)):
            position = lax.broadcasted_iota(jnp.int32, self.size, dim) * by + (at - low)
            flat, inside = flat * n + position, inside & (position >= 0) & (position < n)
        return flat, inside


def _windows(
    ctx: Context,
    x: jax.Array,
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1,),
) -> _Windows:
    dims = 3 if "3d" in str(ctx.node.target) else 2

    def each(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(values) * dims if len(values) == 1 else tuple(values)

    return _Windows(
        tuple(size[-dims:]), x.shape[-dims:], each(kernel), each(stride or kernel), each(padding), each(dilation)
    )


@lowers(aten.avg_pool2d.default, aten.avg_pool3d.default, context=True)
def avg_pool(
    ctx: Context,
    x: jax.Array,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    windows = _windows(ctx, x, ctx.node.meta["val"].shape, kernel, stride, padding)
    return _average(x, windows, count_include_pad, divisor_override)


@lowers(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default, context=True)
def avg_pool_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> jax.Array:
    windows = _windows(ctx, x, grad.shape, kernel, stride, padding)
    _, backward = jax.vjp(lambda x: _average(x, windows, count_include_pad, divisor_override), x)
    return backward(grad)[0]


def _average(x: jax.Array, windows: _Windows, count_include_pad: bool, divisor_override: int | None) -> jax.Array:
    lead = (1,) * (x.ndim - len(windows.size))
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32)) if x.dtype.kind != "i" else x
    zero = np.zeros((), wide.dtype)
    sums = lax.reduce_window(
        windows.padded(wide, 0), zero, lax.add, lead + windows.kernel, lead + windows.stride, "VALID"
    )
    divisor = jnp.asarray(divisor_override or _counts(windows, count_include_pad), sums.dtype)
    divide = lax.div if x.dtype.kind == "i" else jnp.divide
    return divide(sums, jnp.broadcast_to(divisor, sums.shape)).astype(x.dtype)


def _counts(windows: _Windows, padding_counts: bool) -> np.ndarray:
    """How many elements each window averages; what lies beyond the padding never counts."""
    counts = []
    for size, by, low, width, n in zip(
        windows.size, windows.stride, windows.padding, windows.kernel, windows.extent, strict=True
    ):
        starts = np.arange(size) * by - low
        ends = np.minimum(starts + width, n + low)
        counts.append(ends - starts if padding_counts else np.minimum(ends, n) - np.maximum(starts, 0))
    return reduce(np.multiply.outer, counts)


# A window's places are looked at one after the other, each a strided slice: that fuses; nothing gathers or scatters.


@lowers(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default, context=True)
def max_pool_with_indices(
    ctx: Context,
    x: jax.Array,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> list[jax.Array]:
    windows = _windows(ctx, x, ctx.node.meta["val"][0].shape, kernel, stride, padding, dilation)
    lead = x.shape[: x.ndim - len(windows.size)]
    padded = windows.padded(x, 0)
    largest, indices = jnp.zeros((*lead, *windows.size), x.dtype), jnp.full((*lead, *windows.size), -1, jnp.int32)
    for offset in windows.offsets():
        ends = [at + (size - 1) * by + 1 for at, size, by in zip(offset, windows.size, windows.stride, strict=True)]
        start = [0] * len(lead)
        value = lax.slice(padded, [*start, *offset], [*lead, *ends], [*(1 for _ in lead), *windows.stride])
        position, inside = windows.positions(offset)
        larger = inside & ((value > largest) | (value != value) | (indices < 0))  # a NaN is larger than anything
        largest, indices = jnp.where(larger, value, largest), jnp.where(larger, position, indices)
    return [largest, indices]


@lowers(aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default, context=True)
def max_pool_with_indices_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: jax.Array,
) -> jax.Array:
    windows = _windows(ctx, x, grad.shape, kernel, stride, padding, dilation)
    lead = [(0, 0, 0)] * (x.ndim - len(windows.size))
    reach = windows.reach()
    total = jnp.zeros((*x.shape[: len(lead)], *reach), jnp.float32)
    zero = np.zeros((), np.float32)
    for offset in windows.offsets():
        position, inside = windows.positions(offset)
        share = jnp.where(inside & (indices == position), grad, 0).astype(jnp.float32)
        spread = [
            (at, r - at - (size - 1) * by - 1, by - 1)
            for at, r, size, by in zip(offset, reach, windows.size, windows.stride, strict=True)
        ]
        total += lax.pad(share, zero, [*lead, *spread])
    cut = [(-low, n + low - r, 0) for low, r, n in zip(windows.padding, reach, windows.extent, strict=True)]
    return lax.pad(total, zero, [*lead, *cut]).astype(x.dtype)
