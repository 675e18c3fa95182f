"""Activations that PyTorch does not decompose."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from wholestep.xla.lowering.random import draw
from wholestep.xla.lowering.registry import Context, elementwise, lowers

aten = torch.ops.aten


@elementwise(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(grad: jax.Array, x: jax.Array, lambd: float) -> jax.Array:
    return jnp.where((x >= -lambd) & (x <= lambd), 0, grad)


@lowers(aten.rrelu_with_noise_functional.default, context=True)
def rrelu_with_noise(
    ctx: Context,
    x: jax.Array,
    noise: jax.Array,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> list[jax.Array]:
    """With the slope of each element, which the gradient needs."""
    if not training:
        return [jnp.where(x <= 0, x * ((lower + upper) / 2), x).astype(x.dtype), noise]
    drawn = draw(ctx, lambda key, shape: jax.random.uniform(key, shape, x.dtype, lower, upper), shape=x.shape)
    slopes = jnp.where(x <= 0, drawn, 1)
    return [x * slopes, slopes]
