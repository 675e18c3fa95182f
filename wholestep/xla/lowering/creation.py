"""Operators that make a tensor from a shape."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from wholestep.errors import LoweringError
from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten


def filling(value: float, dtype: Any) -> jax.Array:
    """What a tensor of this dtype is filled with, `[]`: of an integer beyond its 8 or 16 bits the last ones."""
    if isinstance(value, int) and jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize < 4:
        value = np.int64(value).astype(dtype)
    return jnp.asarray(value, dtype)


@lowers(aten.full.default, aten.full_like.default, context=True)
def full(ctx: Context, shape_or_like: object, value: float, **options: object) -> jax.Array:
    return jnp.broadcast_to(filling(value, result_dtype(ctx)), ctx.node.meta["val"].shape)


@lowers(
    aten._efficientzerotensor.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.new_empty_strided.default,
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    context=True,
)
def zeros(ctx: Context, *shape_or_like: object, **options: object) -> jax.Array:
    return jnp.zeros(ctx.node.meta["val"].shape, result_dtype(ctx))


@lowers(aten.scalar_tensor.default, torch.ops.prims.scalar_tensor.default, context=True)
def scalar_tensor(ctx: Context, value: float, **options: object) -> jax.Array:
    return filling(value, result_dtype(ctx))


@lowers(aten.arange.start_step, context=True)
def arange(ctx: Context, start: float, end: float, step: float = 1, **options: object) -> jax.Array:
    dtype = result_dtype(ctx)
    if jnp.issubdtype(dtype, jnp.integer):  # bounds and step are rounded first
        start, step = int(start), int(step)
    return start + step * jnp.arange(ctx.node.meta["val"].shape[0], dtype=dtype)


@lowers(aten.linspace.default, context=True)
def linspace(ctx: Context, start: float, end: float, steps: int, **options: object) -> jax.Array:
    dtype = result_dtype(ctx)
    if jnp.issubdtype(dtype, jnp.integer):  # bounds are rounded first
        start, end = int(start), int(end)
    # As PyTorch does it, in float64 and from both ends: one rounding more, and integers are others.
    step = (end - start) / max(steps - 1, 1)
    place = np.arange(steps)
    values = np.where(place < steps // 2, start + step * place, end - step * (steps - 1 - place))
    return jnp.asarray((values if steps > 1 else np.full(steps, start)).astype(dtype))


@lowers(aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor, context=True)
def linspace_of_tensors(ctx: Context, start: Any, end: Any, steps: int, **options: object) -> jax.Array:
    dtype = result_dtype(ctx)
    intervals, place = max(steps - 1, 1), jnp.arange(steps)
    if not jnp.issubdtype(dtype, jnp.integer):
        start, end = (jnp.asarray(bound, jnp.float32) for bound in (start, end))
        step = (end - start) / intervals
        from_both_ends = jnp.where(place < steps // 2, start + step * place, end - step * (intervals - place))
        return (from_both_ends if steps > 1 else jnp.full(steps, start)).astype(dtype)
    if intervals > 46340:
        raise LoweringError(f"{ctx.node.target} of integers: {steps} steps are too many for 32 bits")
    # Integers are exact: whole and remaining part of each product by itself, which so fit 32 bits.
    start, end = (jnp.asarray(bound).astype(jnp.int32) for bound in (start, end))
    whole, rest = jnp.divmod(end - start, intervals)
    more, fraction = jnp.divmod(rest * place, intervals)
    floor = start + whole * place + more
    return (floor + ((floor < 0) & (fraction > 0))).astype(dtype)  # towards zero
