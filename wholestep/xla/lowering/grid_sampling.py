"""Sampling at places that are computed (Jaderberg et al., "Spatial transformer networks", 2015), and its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import jax
import jax.numpy as jnp
import torch

from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten

_NEAREST, _CUBIC = 1, 2
_BORDER, _REFLECTION = 1, 2


@lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(x: jax.Array, grid: jax.Array, interpolation: int, padding: int, align_corners: bool) -> jax.Array:
    wide = x.astype(jnp.float32)
    sources = [
        _source(grid[..., grid.shape[-1] - 1 - dim].astype(jnp.float32), extent, align_corners)  # the last comes first
        for dim, extent in enumerate(x.shape[2:])
    ]
    if interpolation == _CUBIC:
        return _cubic(wide, sources, padding, align_corners).astype(x.dtype)
    sources = [_inside(s, n, padding, align_corners) for s, n in zip(sources, x.shape[2:], strict=True)]
    if interpolation == _NEAREST:
        return _element(wide, [jnp.round(source) for source in sources]).astype(x.dtype)
    total = jnp.zeros((), jnp.float32)
    for corner in product((0, 1), repeat=len(sources)):
        places = [jnp.floor(source) + at for source, at in zip(sources, corner, strict=True)]
        weights = [1 - jnp.abs(source - place) for source, place in zip(sources, places, strict=True)]
        total += math.prod(weights)[:, None] * _element(wide, places)
    return total.astype(x.dtype)


@lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    grad: jax.Array,
    x: jax.Array,
    grid: jax.Array,
    interpolation: int,
    padding: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> list[jax.Array]:
    # What is not wanted is returned all the same, of PyTorch's shape; nothing reads it.
    _, backward = jax.vjp(lambda x, grid: grid_sampler(x, grid, interpolation, padding, align_corners), x, grid)
    return list(backward(grad))


def _source(place: jax.Array, extent: int, align_corners: bool) -> jax.Array:
    """From -1 to 1 -> in elements."""
    return (place + 1) / 2 * (extent - 1) if align_corners else ((place + 1) * extent - 1) / 2


def _inside(source: jax.Array, extent: int, padding: int, align_corners: bool) -> jax.Array:
    if padding == _REFLECTION:
        low, span = (0.0, float(extent - 1)) if align_corners else (-0.5, float(extent))
        source = _reflected(source, low, span)
    if padding in (_BORDER, _REFLECTION):
        # Not `clip`: at the edges PyTorch's gradient is 0.
        source = jnp.where(source > 0, jnp.where(source < extent - 1, source, extent - 1), 0)
    return source


def _reflected(source: jax.Array, low: float, span: float) -> jax.Array:
    if span == 0:
        return jnp.zeros_like(source)
    distance = jnp.where(source < low, low - source, source - low)
    flips = jnp.floor(distance / span)
    extra = distance - flips * span
    return low + jnp.where(flips % 2 == 0, extra, span - extra)


def _element(x: jax.Array, places: Sequence[jax.Array]) -> jax.Array:
    """`x[batch, channels, *places]`, zero where that is outside, or nowhere: a NaN."""
    batch, channels, *extents = x.shape
    flat, inside = jnp.zeros(places[0].shape, jnp.int32), jnp.ones(places[0].shape, jnp.bool_)
    for place, extent in zip(places, extents, strict=True):
        along = (place >= 0) & (place <= extent - 1)
        flat, inside = flat * extent + jnp.where(along, place, 0).astype(jnp.int32), inside & along
    taken = jnp.take_along_axis(x.reshape(batch, channels, -1), flat.reshape(batch, 1, -1), 2)
    return jnp.where(inside[:, None], taken.reshape(batch, channels, *flat.shape[1:]), 0)


def _cubic(x: jax.Array, sources: Sequence[jax.Array], padding: int, align_corners: bool) -> jax.Array:
    total = jnp.zeros((), jnp.float32)
    for offsets in product(range(-1, 3), repeat=len(sources)):
        weight, places = jnp.ones((), jnp.float32), []
        for source, offset, extent in zip(sources, offsets, x.shape[2:], strict=True):
            whole = jnp.floor(source)
            weight *= _cubic_weight(source - whole, offset)
            places.append(_inside(whole + offset, extent, padding, align_corners))
        total += weight[:, None] * _element(x, places)
    return total


def _cubic_weight(part: jax.Array, offset: int) -> jax.Array:
    """Of the element this far from the one below, by Keys's kernel with a = -0.75."""
    a = -0.75
    x = part - offset if offset <= 0 else offset - part
    if offset in (0, 1):
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((x - 5) * x + 8) * x * a - 4 * a
