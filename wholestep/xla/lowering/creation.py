"""Operators that make a tensor from a shape."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten


@lowers(aten.full.default, aten.full_like.default, context=True)
def full(ctx: Context, shape_or_like: object, value: float, **options: object) -> jax.Array:
    return jnp.full(ctx.node.meta["val"].shape, value, result_dtype(ctx))


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


@lowers(aten.scalar_tensor.default, context=True)
def scalar_tensor(ctx: Context, value: float, **options: object) -> jax.Array:
    return jnp.asarray(value, result_dtype(ctx))


@lowers(aten.arange.start_step, context=True)
def arange(ctx: Context, start: float, end: float, step: float = 1, **options: object) -> jax.Array:
    dtype = result_dtype(ctx)
    if jnp.issubdtype(dtype, jnp.integer):  # bounds and step are rounded first
        start, step = int(start), int(step)
    return start + step * jnp.arange(ctx.node.meta["val"].shape[0], dtype=dtype)
