"""Writing a block of an array: by a choice for each element, not by `dynamic_update_slice`.

XLA for CPU (jaxlib 0.10.2) writes such an update in place within one fusion that still reads the same array elsewhere,
where that is read in another shape: rows that move down by one then all become the first one. (Filed nowhere yet; the
program is in `tests/xla/test_blocks.py`.) A choice reads and writes the whole array, and is right everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def with_block(x: jax.Array, block: jax.Array, start: Sequence[int], step: Sequence[int] | None = None) -> jax.Array:
    """`x` with `block` in the place of the elements that begin at `start`.

    Args:
        x: of any shape.
        block: of as many dimensions, within bounds.
        start: of the block.
        step: from one of its elements to the next, in each dimension; 1 where it is None.
    """
    step = [1] * x.ndim if step is None else step
    last = [first + (n - 1) * by for first, n, by in zip(start, block.shape, step, strict=True)]
    if not block.size:
        return x
    widths = [(a, n - 1 - b, by - 1) for a, b, n, by in zip(start, last, x.shape, step, strict=True)]
    chosen = jnp.ones((), jnp.bool_)
    for dim, (first, end, by) in enumerate(zip(start, last, step, strict=True)):
        if block.shape[dim] < x.shape[dim]:
            place = lax.broadcasted_iota(jnp.int32, x.shape, dim)
            chosen &= (place >= first) & (place <= end) & ((place - first) % by == 0)
    return jnp.where(chosen, lax.pad(block, jnp.zeros((), x.dtype), widths), x)


def with_flat_part(x: jax.Array, part: jax.Array, start: jax.Array | int) -> jax.Array:
    """`x`, `[n]`, with `part`, `[m]`, in the place of the elements that begin at `start`, a traced number."""
    place = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    moved = lax.dynamic_update_slice(jnp.zeros_like(x), part, (start,))
    return jnp.where((place >= start) & (place < start + part.size), moved, x)
