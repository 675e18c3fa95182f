"""Reductions of segments of rows, and counts of what falls into bins."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch

from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten

_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -jnp.inf, "min": jnp.inf}


@lowers(aten.segment_reduce.default)
def segment_reduce(
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    indices: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> jax.Array:
    sizes = _sizes(lengths, offsets)

    def reduced(rows: jax.Array, sizes: jax.Array) -> jax.Array:
        result = _reduced(rows, sizes, reduce, _START[reduce] if initial is None else initial)
        if reduce != "mean":
            return result
        counts = _along(sizes, result).astype(result.dtype)
        empty = jnp.asarray(jnp.nan, result.dtype) if initial is None else result
        return jnp.where(counts == 0, empty, result / jnp.maximum(counts, 1))

    for _ in range(axis):
        reduced = jax.vmap(reduced)
    return reduced(data, sizes)


@lowers(aten._segment_reduce_backward.default)
def segment_reduce_backward(
    grad: jax.Array,
    output: jax.Array,
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> jax.Array:
    """A product's is that of the others in the segment; of equal extremes each has its part (in
    PyTorch, of a gradient that is not positive, each has all of it)."""
    sizes = _sizes(lengths, offsets)

    def backward(grad: jax.Array, output: jax.Array, rows: jax.Array, sizes: jax.Array) -> jax.Array:
        segment = _segment(rows, sizes)

        def of_rows(values: jax.Array) -> jax.Array:
            return values.at[segment].get(mode="fill", fill_value=0)

        def summed(values: jax.Array) -> jax.Array:
            return of_rows(_reduced(values, sizes, "sum", 0))

        if reduce == "sum":
            return of_rows(grad)
        if reduce == "mean":
            return of_rows(grad / jnp.maximum(_along(sizes, grad), 1).astype(grad.dtype))
        if reduce == "prod":
            zero = rows == 0
            rest = of_rows(_reduced(jnp.where(zero, 1, rows), sizes, "prod", 1 if initial is None else initial))
            zeros = summed(zero.astype(rows.dtype)) - zero.astype(rows.dtype)  # among the others
            others = jnp.where(zero, rest, rest / jnp.where(zero, 1, rows))
            return of_rows(grad) * jnp.where(zeros == 0, others, 0)
        reached = (rows == of_rows(output)) | (rows != rows)
        return jnp.where(reached, of_rows(grad) / summed(reached.astype(rows.dtype)), 0)

    for _ in range(axis):
        backward = jax.vmap(backward)
    return backward(grad, output, data, sizes)


def _sizes(lengths: jax.Array | None, offsets: jax.Array | None) -> jax.Array:
    if lengths is not None:
        return lengths
    assert offsets is not None, "PyTorch wants one of them"
    return jnp.diff(offsets, axis=-1)


def _segment(rows: jax.Array, sizes: jax.Array) -> jax.Array:
    """Which segment each row is in; after the last one, none."""
    return jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(rows.shape[0]), side="right")


def _along(sizes: jax.Array, like: jax.Array) -> jax.Array:
    return sizes.reshape(-1, *[1] * (like.ndim - 1))


def _reduced(rows: jax.Array, sizes: jax.Array, reduce: str, start: float) -> jax.Array:
    at = jnp.full((sizes.shape[0], *rows.shape[1:]), start, rows.dtype).at[_segment(rows, sizes)]
    write = {"prod": at.multiply, "max": at.max, "min": at.min}.get(reduce, at.add)
    return write(rows, mode="drop")


@lowers(aten.histc.default)
def histc(x: jax.Array, bins: int = 100, min: float = 0, max: float = 0) -> jax.Array:
    flat = x.reshape(-1).astype(jnp.float32)
    low, high = (jnp.asarray(bound, jnp.float32) for bound in (min, max))
    if min == max and x.size:
        low, high = jnp.min(flat), jnp.max(flat)
    same = low == high
    low, high = jnp.where(same, low - 1, low), jnp.where(same, high + 1, high)
    place = jnp.floor((flat - low) * (bins / (high - low))).astype(jnp.int32)
    place = jnp.where((flat >= low) & (flat <= high), jnp.minimum(place, bins - 1), bins)
    return jnp.zeros(bins, jnp.float32).at[place].add(1, mode="drop").astype(x.dtype)


@lowers(aten.histogram.bins_tensor)
def histogram(
    x: jax.Array, edges: jax.Array, *, weight: jax.Array | None = None, density: bool = False
) -> list[jax.Array]:
    return [histogramdd(x.reshape(-1, 1), [edges], weight=weight, density=density), edges]


@lowers(aten._histogramdd_from_bin_tensors.default)
def histogramdd(
    x: jax.Array, edges: Sequence[jax.Array], *, weight: jax.Array | None = None, density: bool = False
) -> jax.Array:
    """Of points `[..., dimensions]`. The last bin of a dimension holds its end, too."""
    points, shape = x.reshape(-1, len(edges)), tuple(each.shape[0] - 1 for each in edges)
    places, inside = [], jnp.ones(points.shape[0], jnp.bool_)
    for along, each in zip(points.T, edges, strict=True):
        place = jnp.searchsorted(each, along, side="right") - 1
        places.append(jnp.where(along == each[-1], each.shape[0] - 2, place))
        inside &= (along >= each[0]) & (along <= each[-1])
    counted = jnp.where(inside, jnp.ones((), x.dtype) if weight is None else weight.reshape(-1), 0)
    counts = jnp.zeros(shape, x.dtype).at[tuple(places)].add(counted, mode="drop")
    if not density:
        return counts
    for dim, each in enumerate(edges):
        counts /= jnp.diff(each).reshape(-1, *[1] * (len(shape) - 1 - dim))
    return counts / jnp.sum(counted)


@lowers(aten.histogram.bin_ct)
def histogram_of_count(
    x: jax.Array,
    bins: int,
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> list[jax.Array]:
    (edges,) = bin_edges(x.reshape(-1, 1), [bins], range=range)
    return histogram(x, edges, weight=weight, density=density)


@lowers(aten._histogramdd_bin_edges.default)
def bin_edges(
    x: jax.Array, bins: Sequence[int], *, range: Sequence[float] | None = None, **options: object
) -> list[jax.Array]:
    """Those of bins of equal width, along each dimension of points `[..., dimensions]`."""
    edges = []
    for dim, (count, along) in enumerate(zip(bins, x.reshape(-1, len(bins)).T, strict=True)):
        if range is not None:
            low, high = (jnp.asarray(bound, x.dtype) for bound in range[2 * dim : 2 * dim + 2])
        elif x.size:
            low, high = jnp.min(along), jnp.max(along)
        else:
            low, high = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
        same = low == high
        low, high = jnp.where(same, low - 0.5, low), jnp.where(same, high + 0.5, high)
        edges.append(jnp.linspace(low, high, count + 1, dtype=x.dtype))
    return edges


@lowers(aten._histogramdd_from_bin_cts.default)
def histogramdd_of_counts(
    x: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    return histogramdd(x, bin_edges(x, bins, range=range), weight=weight, density=density)
