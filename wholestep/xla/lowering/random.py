"""Random draws. Every node draws from a key of its own, so that a program's draws depend on its key alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch.utils._pytree import tree_leaves

from wholestep.errors import LoweringError
from wholestep.xla.draws import Sample
from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten


def draw(
    ctx: Context,
    sample: Sample,
    of_rows: bool = True,
    shape: tuple[int, ...] | None = None,
    parameters: Sequence[jax.Array] = (),
) -> jax.Array:
    """What the node draws.

    Args:
        sample: `(key, shape, *parameters) -> numbers`.
        of_rows: whether the first dimension is of a batch's rows.
        shape: of what is drawn, where that is not the node's result.
        parameters: of each number's distribution, of the shape of what is drawn.
    """
    if ctx.draws.key is None:
        raise LoweringError(f"{ctx.node.target} draws random numbers, but the program has no key")
    draws = ctx.draws if of_rows else dataclasses.replace(ctx.draws, part=None)
    drawn = tuple(tree_leaves(ctx.node.meta["val"])[0].shape) if shape is None else shape
    return draws.sample(ctx.node.meta["draw"], drawn, sample, *parameters)


@lowers(aten.uniform.default, context=True)
def uniform(ctx: Context, x: jax.Array, low: float = 0, high: float = 1, generator: object = None) -> jax.Array:
    return draw(ctx, lambda key, shape: jax.random.uniform(key, shape, result_dtype(ctx), low, high))


@lowers(aten.normal_functional.default, context=True)
def normal(ctx: Context, x: jax.Array, mean: float = 0, std: float = 1, generator: object = None) -> jax.Array:
    return mean + std * draw(ctx, lambda key, shape: jax.random.normal(key, shape, result_dtype(ctx)))


@lowers(aten.rand.default, aten.rand_like.default, context=True)
def rand(ctx: Context, like: jax.Array | Sequence[int], **options: object) -> jax.Array:
    return draw(ctx, lambda key, shape: jax.random.uniform(key, shape, result_dtype(ctx)))


@lowers(aten.randn.default, aten.randn_like.default, context=True)
def randn(ctx: Context, like: jax.Array | Sequence[int], **options: object) -> jax.Array:
    return draw(ctx, lambda key, shape: jax.random.normal(key, shape, result_dtype(ctx)))


@lowers(aten.bernoulli.p, context=True)
def bernoulli(ctx: Context, x: jax.Array, p: float = 0.5, generator: object = None) -> jax.Array:
    drawn = draw(ctx, lambda key, shape: jax.random.bernoulli(key, p, shape))
    return drawn.astype(result_dtype(ctx))


@lowers(aten.native_dropout.default, context=True)
def native_dropout(ctx: Context, x: jax.Array, p: float, train: bool | None = True) -> tuple[jax.Array, jax.Array]:
    if not train:
        return x, jnp.ones(x.shape, jnp.bool_)
    kept = draw(ctx, lambda key, shape: jax.random.bernoulli(key, 1 - p, shape))
    # A division in fp32, rounded to x's dtype: the factor itself is not rounded. Of p = 1 nothing is left.
    scaled = (x.astype(jnp.float32) * (1 / (1 - p) if p < 1 else 0)).astype(x.dtype)
    return jnp.where(kept, scaled, jnp.zeros_like(x)), kept


@lowers(aten.bernoulli.default, context=True)
def bernoulli_of(ctx: Context, p: jax.Array, generator: object = None) -> jax.Array:
    return (_unit(ctx) < p).astype(result_dtype(ctx))


@lowers(aten.bernoulli.Tensor, context=True)
def bernoulli_like(ctx: Context, x: jax.Array, p: jax.Array, generator: object = None) -> jax.Array:
    return (_unit(ctx) < p).astype(result_dtype(ctx))


@lowers(aten.exponential.default, context=True)
def exponential(ctx: Context, x: jax.Array, rate: float = 1, generator: object = None) -> jax.Array:
    return (draw(ctx, jax.random.exponential) / rate).astype(result_dtype(ctx))


@lowers(aten.cauchy.default, context=True)
def cauchy(ctx: Context, x: jax.Array, median: float = 0, sigma: float = 1, generator: object = None) -> jax.Array:
    return (median + sigma * draw(ctx, jax.random.cauchy)).astype(result_dtype(ctx))


@lowers(aten.log_normal.default, context=True)
def log_normal(ctx: Context, x: jax.Array, mean: float = 1, std: float = 2, generator: object = None) -> jax.Array:
    return jnp.exp(mean + std * draw(ctx, jax.random.normal)).astype(result_dtype(ctx))


@lowers(aten.geometric.default, context=True)
def geometric(ctx: Context, x: jax.Array, p: float, generator: object = None) -> jax.Array:
    return draw(ctx, lambda key, shape: jax.random.geometric(key, p, shape)).astype(result_dtype(ctx))


@lowers(
    aten.normal.Tensor_Tensor,
    aten.normal.Tensor_float,
    aten.normal.float_Tensor,
    aten.normal.float_float,
    context=True,
)
def normal_of(ctx: Context, mean: Any, std: Any = 1, *shape: object, **options: object) -> jax.Array:
    return (mean + std * draw(ctx, jax.random.normal)).astype(result_dtype(ctx))


@lowers(aten.randint.default, aten.randint_like.default, context=True)
def randint(ctx: Context, *high_and_shape: Any, **options: object) -> jax.Array:
    high = next(arg for arg in high_and_shape if isinstance(arg, int))
    return _integers(ctx, 0, high)


@lowers(aten.randint.low, context=True)
def randint_between(ctx: Context, low: int, high: int, *shape: object, **options: object) -> jax.Array:
    return _integers(ctx, low, high)


@lowers(aten.randint_like.low_dtype, context=True)
def randint_like(ctx: Context, x: jax.Array, low: int, high: int, **options: object) -> jax.Array:
    return _integers(ctx, low, high)


@lowers(aten.random.to, context=True)
def random_below(ctx: Context, x: jax.Array, high: int, generator: object = None) -> jax.Array:
    return _integers(ctx, 0, high)


@lowers(aten.random.default, context=True)
def random(ctx: Context, x: jax.Array, generator: object = None) -> jax.Array:
    return _integers(ctx, 0, _top(ctx))


@lowers(aten.randperm.default, aten.randperm.generator, context=True)
def randperm(ctx: Context, count: int, **options: object) -> jax.Array:
    # Its elements are no rows: the parts of a batch draw the same.
    drawn = draw(ctx, lambda key, shape: jax.random.permutation(key, count), of_rows=False)
    return drawn.astype(result_dtype(ctx))


@lowers(aten.multinomial.default, context=True)
def multinomial(
    ctx: Context, weights: jax.Array, count: int, replacement: bool = False, generator: object = None
) -> jax.Array:
    weights = weights.astype(jnp.float32)
    # One distribution without rows draws alike in all parts of a batch.
    of_rows = weights.ndim > 1
    if replacement:
        below = jnp.cumsum(weights, -1)
        drawn = draw(ctx, jax.random.uniform, of_rows) * below[..., -1:]
        return jnp.sum(below[..., None, :] <= drawn[..., None], -1).astype(result_dtype(ctx))
    noise = draw(ctx, jax.random.gumbel, of_rows, weights.shape)
    return lax.top_k(jnp.log(weights) + noise, count)[1].astype(result_dtype(ctx))


def _unit(ctx: Context) -> jax.Array:
    """Uniform in [0, 1), to compare probabilities with."""
    return draw(ctx, jax.random.uniform)


def _integers(ctx: Context, low: int, high: int) -> jax.Array:
    """Uniform in [low, high)."""
    if low < -(2**31) or high > 2**31:
        raise LoweringError(
            f"{ctx.node.target} draws integers in [{low}, {high}), and programs carry integers in 32 bits"
        )
    # `high` itself need not fit; of all 32 bits the last number is missing.
    count = np.uint32(min(high - low, 2**32 - 1))
    drawn = draw(ctx, lambda key, shape: low + jax.random.randint(key, shape, 0, count, jnp.uint32).astype(int))
    return drawn.astype(result_dtype(ctx))


def _top(ctx: Context) -> int:
    """One more than the greatest integer of the dtype; of floating ones, that they hold with all before it."""
    dtype = result_dtype(ctx)
    if dtype.kind == "b":
        return 2
    if jnp.issubdtype(dtype, jnp.floating):
        return min(2 ** (jnp.finfo(dtype).nmant + 1) + 1, 2**31)
    return min(jnp.iinfo(dtype).max + 1, 2**31)
