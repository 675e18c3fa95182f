"""Draws from distributions that each number has parameters of its own of: `torch.distributions`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from wholestep.xla.lowering.random import draw
from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten


@lowers(aten._standard_gamma.default, context=True)
def standard_gamma(ctx: Context, shape_parameter: jax.Array, generator: object = None) -> jax.Array:
    """Gamma draws of rate 1."""
    return jnp.exp(_log_gamma_draws(ctx, shape_parameter)).astype(result_dtype(ctx))


@lowers(aten._sample_dirichlet.default, context=True)
def dirichlet(ctx: Context, concentration: jax.Array, generator: object = None) -> jax.Array:
    """Gamma draws over their sum: in logarithms, since small concentrations draw below what floats hold."""
    return jax.nn.softmax(_log_gamma_draws(ctx, concentration), -1).astype(result_dtype(ctx))


@lowers(aten.poisson.default, context=True)
def poisson(ctx: Context, rate: jax.Array, generator: object = None) -> jax.Array:
    drawn = draw(
        ctx, lambda key, shape, rate: jax.random.poisson(key, rate, shape), parameters=[rate.astype(jnp.float32)]
    )
    return drawn.astype(result_dtype(ctx))


@lowers(aten.binomial.default, context=True)
def binomial(ctx: Context, count: jax.Array, probability: jax.Array, generator: object = None) -> jax.Array:
    parameters = [x.astype(jnp.float32) for x in jnp.broadcast_arrays(count, probability)]
    drawn = draw(ctx, lambda key, shape, n, p: jax.random.binomial(key, n, p, shape), parameters=parameters)
    return drawn.astype(result_dtype(ctx))


def _log_gamma_draws(ctx: Context, shape_parameter: jax.Array) -> jax.Array:
    return draw(
        ctx,
        lambda key, shape, a: jax.random.loggamma(key, a, shape),
        parameters=[shape_parameter.astype(jnp.float32)],
    )
