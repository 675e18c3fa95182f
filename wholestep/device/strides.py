"""Views as PyTorch describes them, sizes, strides and an offset over a storage, read and written as XLA operators."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from wholestep.xla.blocks import with_block, with_flat_part


class View(NamedTuple):
    """Where a tensor's elements lie in its storage, all in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def span(self) -> int:
        """Elements of the storage from the first to the last; of a view that is not empty."""
        return span(self.size, self.stride)


def contiguous(size: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor, the last dimension fastest."""
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def take(array: jax.Array, view: View) -> jax.Array:
    """The view's elements, `[*view.size]`.

    Args:
        array: the storage, whatever its shape; its elements in row-major order are the storage's.
        view: in bounds.
    """
    if view.offset == 0 and array.shape == view.size and view.stride == contiguous(view.size):
        return array
    if 0 in view.size:
        return jnp.zeros(view.size, array.dtype)
    grid = _Grid.of(view, array.size)
    if grid is None:
        return array.reshape(-1)[_places(view)]
    block = lax.slice(grid.spread(array), grid.start, [a + n for a, n in zip(grid.start, grid.extent, strict=True)])
    dense = jnp.transpose(block.reshape(grid.extent[:-1]), [grid.order.index(i) for i in range(len(grid.order))])
    kept = [n if step else 1 for n, step in zip(view.size, view.stride, strict=True)]
    return jnp.broadcast_to(dense.reshape(kept), view.size)


def span(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of the storage from a view's first to its last; of a view that is not empty."""
    return 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))


@functools.partial(jax.jit, static_argnames="length")
def part(array: jax.Array, offset: int, length: int) -> jax.Array:
    """Elements `[length]` of a storage: one program wherever they begin."""
    return lax.dynamic_slice(array.reshape(-1), (offset,), (length,))


@jax.jit
def with_part(array: jax.Array, elements: jax.Array, offset: int) -> jax.Array:
    """The storage with `elements`, `[n]`, in the place of those that begin there."""
    return with_flat_part(array.reshape(-1), elements, offset).reshape(array.shape)


def put(array: jax.Array, view: View, value: jax.Array) -> jax.Array:
    """The storage with `value`, `[*view.size]`, written where the view lies. Where a view covers an element more than
    once, which of its values stays is open, as in PyTorch."""
    if 0 in view.size:
        return array
    if view.offset == 0 and array.shape == view.size and view.stride == contiguous(view.size):
        return value
    grid = None if 0 in view.stride else _Grid.of(view, array.size)
    if grid is None:
        return array.reshape(-1).at[_places(view)].set(value).reshape(array.shape)
    ordered = jnp.transpose(value.reshape([view.size[dim] for dim in grid.dims]), grid.order)
    written = with_block(grid.spread(array), ordered.reshape(grid.extent), grid.start)
    return written.reshape(-1)[: array.size].reshape(array.shape)


class _Grid(NamedTuple):
    """A storage as a grid in which a view is a block: each stride divides the next larger one.

    Attributes:
        shape: of the grid; its last dimension is what lies between two elements of the innermost stride.
        start: of the block.
        extent: its size; 1 in the last dimension.
        dims: the view's dimensions that are in the grid: those of a stride of 0 or of one element are not.
        order: of `dims`, from the largest stride to the smallest.
    """

    shape: tuple[int, ...]
    start: tuple[int, ...]
    extent: tuple[int, ...]
    dims: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, view: View, elements: int) -> _Grid | None:
        """None where the view is no block of any grid."""
        dims = tuple(i for i, n in enumerate(view.size) if n > 1 and view.stride[i])
        order = tuple(sorted(range(len(dims)), key=lambda i: -view.stride[dims[i]]))
        steps = [view.stride[dims[i]] for i in order]
        if any(outer % inner for outer, inner in itertools.pairwise(steps)):
            return None
        # The innermost stride is a dimension too, of which the block has one element.
        steps = [*steps, 1]
        extents = [-(-elements // steps[0]), *(a // b for a, b in itertools.pairwise(steps))]
        count = [*(view.size[dims[i]] for i in order), 1]
        start, rest = [], view.offset
        for step in steps:
            start.append(rest // step)
            rest %= step
        if any(first + n > extent for first, n, extent in zip(start, count, extents, strict=True)):
            return None
        return cls(tuple(extents), tuple(start), tuple(count), dims, order)

    def spread(self, array: jax.Array) -> jax.Array:
        """The storage in this shape, filled up where it ends within a row."""
        missing = math.prod(self.shape) - array.size
        flat = jnp.pad(array.reshape(-1), (0, missing)) if missing else array
        return flat.reshape(self.shape)


def _places(view: View) -> jax.Array:
    """The flat index of each element."""
    places = jnp.full(view.size, view.offset, jnp.int32)
    for dim, step in enumerate(view.stride):
        places += step * lax.broadcasted_iota(jnp.int32, view.size, dim)
    return places
