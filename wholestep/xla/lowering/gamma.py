"""The gamma function and its relatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from wholestep.xla.lowering.registry import Context, elementwise, lowers, result_dtype

aten = torch.ops.aten

elementwise(aten.igamma.default)(lambda a, x: lax.igamma(*jnp.broadcast_arrays(a, x)))
elementwise(aten.igammac.default)(lambda a, x: lax.igammac(*jnp.broadcast_arrays(a, x)))


@elementwise(aten.lgamma.default)
def lgamma(x: jax.Array) -> jax.Array:
    return jnp.where((x == 1) | (x == 2), 0, lax.lgamma(x))  # where XLA's is only nearly 0


@elementwise(aten.digamma.default)
def digamma(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), lax.digamma(x))


@lowers(aten.polygamma.default, context=True)
def polygamma(ctx: Context, n: int, x: jax.Array) -> jax.Array:
    """The n-th derivative of digamma. Below 1/2 by reflection, since JAX's is that of positive numbers only."""
    x = x.astype(jnp.promote_types(result_dtype(ctx), jnp.float32))
    if n == 0:
        return digamma(x).astype(result_dtype(ctx))
    below = x < 0.5
    right = jax.scipy.special.polygamma(n, jnp.where(below, 1 - x, x))
    part = x - jnp.round(x)
    half = jnp.abs(part) > 0.25  # nearer to a zero of the cotangent than to a pole
    from_zero = jnp.sign(part) * jnp.tan(jnp.pi * (0.5 - jnp.abs(part)))
    cotangent = jnp.where(half, from_zero, 1 / jnp.tan(jnp.pi * part))
    left = (-1) ** n * right - jnp.pi ** (n + 1) * jnp.polyval(jnp.asarray(_cotangent_derivative(n)), cotangent)
    pole = below & (x == jnp.round(x))
    result = jnp.where(pole, (-1) ** (n + 1) * jnp.inf, jnp.where(below, left, right))
    return result.astype(result_dtype(ctx))


def _cotangent_derivative(n: int) -> list[float]:
    """The n-th derivative of the cotangent as a polynomial of the cotangent, highest power first."""
    polynomial = np.poly1d([1.0, 0.0])
    for _ in range(n):
        polynomial = polynomial.deriv() * np.poly1d([-1.0, 0.0, -1.0])
    return list(polynomial.coefficients)
