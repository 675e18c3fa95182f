"""Interpolation to another size, edges repeated, and the gradients of both: each is one linear map a dimension, of few
elements of the input for each of the output, known when the program is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from wholestep.errors import LoweringError
from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten

Taps = tuple[np.ndarray, np.ndarray]
"""`(int[out, taps], float32[out, taps])`: which elements make up each result along a dimension, and their weights."""


def _nearest(extent: int, size: int, scale: float | None) -> Taps:
    if size in (extent, 2 * extent):  # whatever the scale
        places = np.arange(size) * extent // size
    else:
        places = np.floor(np.arange(size, dtype=np.float32) * _step(extent, size, scale)).astype(int)
    return np.minimum(places, extent - 1)[:, None], np.ones((size, 1), np.float32)


def _nearest_exact(extent: int, size: int, scale: float | None) -> Taps:
    places = np.floor((np.arange(size, dtype=np.float32) + np.float32(0.5)) * _step(extent, size, scale))
    return np.minimum(places.astype(int), extent - 1)[:, None], np.ones((size, 1), np.float32)


def _linear(extent: int, size: int, scale: float | None, align_corners: bool) -> Taps:
    whole, part = _split(np.maximum(_sources(extent, size, scale, align_corners), 0), extent)
    return np.minimum(whole[:, None] + [0, 1], extent - 1), np.stack([1 - part, part], 1)


def _cubic(extent: int, size: int, scale: float | None, align_corners: bool) -> Taps:
    whole, part = _split(_sources(extent, size, scale, align_corners), extent)
    weights = _cubic_kernel(part[:, None] - np.arange(-1, 3, dtype=np.float32), -0.75)
    return np.clip(whole[:, None] + np.arange(-1, 3), 0, extent - 1), weights


def _antialiased(kernel: Callable[[np.ndarray], np.ndarray], radius: int) -> Callable[..., Taps]:
    """The kernel as wide as the step between results, where that is more than one element."""

    def taps(extent: int, size: int, scale: float | None, align_corners: bool) -> Taps:
        step = _corner_step(extent, size) if align_corners else _step(extent, size, scale)
        wide = max(float(step), 1.0)
        centers = float(step) * (np.arange(size) + 0.5)
        first = np.maximum((centers - radius * wide + 0.5).astype(int), 0)
        last = np.minimum((centers + radius * wide + 0.5).astype(int), extent)
        places = first[:, None] + np.arange(math.ceil(radius * wide) * 2 + 1)
        weights = kernel((places - centers[:, None] + 0.5) / wide) * (places < last[:, None])
        return np.minimum(places, extent - 1), (weights / weights.sum(1, keepdims=True)).astype(np.float32)

    return taps


def _step(extent: int, size: int, scale: float | None) -> np.float32:
    return np.float32(1 / scale) if scale else np.float32(extent) / np.float32(size)


def _corner_step(extent: int, size: int) -> np.float32:
    return np.float32(extent - 1) / np.float32(size - 1) if size > 1 else np.float32(0)


def _sources(extent: int, size: int, scale: float | None, align_corners: bool) -> np.ndarray:
    places = np.arange(size, dtype=np.float32)
    if align_corners:
        return places * _corner_step(extent, size)
    return (places + np.float32(0.5)) * _step(extent, size, scale) - np.float32(0.5)


def _split(sources: np.ndarray, extent: int) -> tuple[np.ndarray, np.ndarray]:
    whole = np.minimum(np.floor(sources).astype(int), extent - 1)
    return whole, np.clip(sources - whole, 0, 1).astype(np.float32)


def _cubic_kernel(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys, "Cubic convolution interpolation for digital image processing", 1981."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0)).astype(np.float32)


def _resized(x: jax.Array, each: Sequence[Taps]) -> jax.Array:
    """`x` with its last dimensions interpolated."""
    if any(weights.shape[1] > 1 for _, weights in each) and not jnp.issubdtype(x.dtype, jnp.floating):
        raise LoweringError(f"interpolation between elements of {x.dtype} has no lowering to XLA yet")
    dtype = x.dtype
    for axis, (places, weights) in enumerate(each, x.ndim - len(each)):
        if weights.shape[1] == 1:
            x = jnp.take(x, places[:, 0], axis)
            continue
        shape = [-1] + [1] * (x.ndim - 1 - axis)
        x = sum(
            (
                jnp.take(x, place, axis).astype(jnp.float32) * weight.reshape(shape)
                for place, weight in zip(places.T, weights.T, strict=True)
            ),
            start=jnp.zeros((), jnp.float32),
        )
    return x.astype(dtype)


def _transposed(grad: jax.Array, shape: Sequence[int], each: Sequence[Taps]) -> jax.Array:
    like = jax.ShapeDtypeStruct(tuple(shape), jnp.float32)
    return jax.linear_transpose(lambda x: _resized(x, each), like)(grad.astype(jnp.float32))[0].astype(grad.dtype)


def _lower_interpolation(name: str, rule: Callable[..., Taps]) -> None:
    """Options are a scale for each dimension, if any, and `align_corners` before them unless the rule takes none."""
    others = 0 if "nearest" in name else 1

    def taps(extents: Sequence[int], size: Sequence[int], options: Sequence[Any]) -> list[Taps]:
        scales = options[others:] or [None] * len(size)
        extents = extents[-len(size) :]
        return [rule(*along, *options[:others]) for along in zip(extents, size, scales, strict=True)]

    @lowers(getattr(aten, name).default)
    def interpolate(x: jax.Array, size: Sequence[int], *options: Any) -> jax.Array:
        return _resized(x, taps(x.shape, size, options))

    @lowers(getattr(aten, f"{name}_backward").default)
    def interpolate_backward(grad: jax.Array, size: Sequence[int], shape: Sequence[int], *options: Any) -> jax.Array:
        return _transposed(grad, shape, taps(shape, size, options))


_RULES: dict[str, Callable[..., Taps]] = {
    "upsample_nearest1d": _nearest,
    "upsample_nearest2d": _nearest,
    "upsample_nearest3d": _nearest,
    "_upsample_nearest_exact1d": _nearest_exact,
    "_upsample_nearest_exact2d": _nearest_exact,
    "_upsample_nearest_exact3d": _nearest_exact,
    "upsample_linear1d": _linear,
    "upsample_bilinear2d": _linear,
    "upsample_trilinear3d": _linear,
    "upsample_bicubic2d": _cubic,
    "_upsample_bilinear2d_aa": _antialiased(lambda x: np.maximum(1 - np.abs(x), 0), 1),
    "_upsample_bicubic2d_aa": _antialiased(lambda x: _cubic_kernel(x, -0.5), 2),
}
for _name, _rule in _RULES.items():
    _lower_interpolation(_name, _rule)


@lowers(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def replication_pad_backward(grad: jax.Array, x: jax.Array, padding: Sequence[int]) -> jax.Array:
    each: list[Taps] = []
    for dim in range(len(padding) // 2):  # PyTorch lists the last dimension first
        extent, (low, high) = x.shape[-1 - dim], padding[2 * dim : 2 * dim + 2]
        places = np.clip(np.arange(-low, extent + high), 0, extent - 1)[:, None]
        each.insert(0, (places, np.ones(places.shape, np.float32)))
    return _transposed(grad, x.shape, each)
