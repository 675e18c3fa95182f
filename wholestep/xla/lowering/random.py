"""Random draws. Every node draws from a key of its own, so that a program's draws depend on its key alone."""

from __future__ import annotations

import jax
import torch

from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten


@lowers(aten.uniform.default, context=True)
def uniform(ctx: Context, x: jax.Array, low: float = 0, high: float = 1, generator: object = None) -> jax.Array:
    return jax.random.uniform(ctx.random_key(), x.shape, result_dtype(ctx), low, high)


@lowers(aten.normal_functional.default, context=True)
def normal(ctx: Context, x: jax.Array, mean: float = 0, std: float = 1, generator: object = None) -> jax.Array:
    return mean + std * jax.random.normal(ctx.random_key(), x.shape, result_dtype(ctx))
