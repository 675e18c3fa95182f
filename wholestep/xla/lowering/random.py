"""Random draws. Every node draws from a key of its own, so that a program's draws depend on its key alone."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import torch

from wholestep.xla.draws import Sample
from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten


def _draw(ctx: Context, sample: Sample) -> jax.Array:
    return ctx.draws.sample(ctx.node.meta["draw"], tuple(ctx.node.meta["val"].shape), sample)


@lowers(aten.uniform.default, context=True)
def uniform(ctx: Context, x: jax.Array, low: float = 0, high: float = 1, generator: object = None) -> jax.Array:
    return _draw(ctx, lambda key, shape: jax.random.uniform(key, shape, result_dtype(ctx), low, high))


@lowers(aten.normal_functional.default, context=True)
def normal(ctx: Context, x: jax.Array, mean: float = 0, std: float = 1, generator: object = None) -> jax.Array:
    return mean + std * _draw(ctx, lambda key, shape: jax.random.normal(key, shape, result_dtype(ctx)))


@lowers(aten.rand.default, aten.rand_like.default, context=True)
def rand(ctx: Context, like: jax.Array | Sequence[int], **options: object) -> jax.Array:
    return _draw(ctx, lambda key, shape: jax.random.uniform(key, shape, result_dtype(ctx)))


@lowers(aten.randn.default, aten.randn_like.default, context=True)
def randn(ctx: Context, like: jax.Array | Sequence[int], **options: object) -> jax.Array:
    return _draw(ctx, lambda key, shape: jax.random.normal(key, shape, result_dtype(ctx)))


@lowers(aten.bernoulli.p, context=True)
def bernoulli(ctx: Context, x: jax.Array, p: float = 0.5, generator: object = None) -> jax.Array:
    drawn = _draw(ctx, lambda key, shape: jax.random.bernoulli(key, p, shape))
    return drawn.astype(result_dtype(ctx))
