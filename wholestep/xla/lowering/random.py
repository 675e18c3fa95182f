"""Random draws. Every node draws from a key of its own, so that a program's draws depend on its key alone."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
from torch.utils._pytree import tree_leaves

from wholestep.errors import LoweringError
from wholestep.xla.draws import Sample
from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten


def draw(ctx: Context, shape: tuple[int, ...], sample: Sample) -> jax.Array:
    """What the node that is lowered draws.

    Raises:
        LoweringError: the program has no key.
    """
    if ctx.draws.key is None:
        raise LoweringError(f"{ctx.node.target} draws random numbers, but the program has no key")
<<<<<<< HEAD
    drawn = tree_leaves(ctx.node.meta["val"])[0]
    return ctx.draws.sample(ctx.node.meta["draw"], tuple(drawn.shape), sample)
=======
    return ctx.draws.sample(ctx.node.meta["draw"], shape, sample)


def _draw(ctx: Context, sample: Sample) -> jax.Array:
    return draw(ctx, tuple(ctx.node.meta["val"].shape), sample)
>>>>>>> 2e279d4 (Convolutions, pooling, interpolation, sampling, bags, attention and margin losses)


@lowers(aten.uniform.default, context=True)
def uniform(ctx: Context, x: jax.Array, low: float = 0, high: float = 1, generator: object = None) -> jax.Array:
    return _draw(ctx, lambda key, shape: jax.random.uniform(key, shape, result_dtype(ctx), low, high))


@lowers(aten.normal_functional.default, context=True)
def normal(ctx: Context, x: jax.Array, mean: float = 0, std: float = 1, generator: object = None) -> jax.Array:
    return mean + std * _draw(ctx, lambda key, shape: jax.random.normal(key, shape, result_dtype(ctx)))


@lowers(
    aten.normal.float_float,
    aten.normal.float_Tensor,
    aten.normal.Tensor_float,
    aten.normal.Tensor_Tensor,
    context=True,
)
def normal_of_each(
    ctx: Context, mean: jax.Array | float, std: jax.Array | float, *shape: object, **options: object
) -> jax.Array:
    """With a mean and a deviation for each element, or for all."""
    drawn = _draw(ctx, lambda key, shape: jax.random.normal(key, shape, result_dtype(ctx)))
    return (mean + std * drawn).astype(result_dtype(ctx))


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


@lowers(aten.native_dropout.default, context=True)
def native_dropout(ctx: Context, x: jax.Array, p: float, train: bool | None = True) -> tuple[jax.Array, jax.Array]:
    if not train:
        return x, jnp.ones(x.shape, jnp.bool_)
    kept = _draw(ctx, lambda key, shape: jax.random.bernoulli(key, 1 - p, shape))
    # A division in fp32, rounded to x's dtype: the factor itself is not rounded. Of p = 1 nothing is left.
    scaled = (x.astype(jnp.float32) * (1 / (1 - p) if p < 1 else 0)).astype(x.dtype)
    return jnp.where(kept, scaled, jnp.zeros_like(x)), kept
