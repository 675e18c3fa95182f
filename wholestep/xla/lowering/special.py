"""Special functions: what is related to the error function, the normal distribution and the zeta function."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.scipy import special

from wholestep.xla.lowering.registry import elementwise

aten = torch.ops.aten

elementwise(aten.erfc.default)(lax.erfc)
elementwise(aten.i0.default, aten.special_modified_bessel_i0.default)(special.i0)
elementwise(aten.special_i0e.default)(special.i0e)
elementwise(aten.special_i1.default, aten.special_modified_bessel_i1.default)(special.i1)
elementwise(aten.special_i1e.default)(special.i1e)
elementwise(aten.special_ndtri.default)(special.ndtri)


@elementwise(aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar)
def zeta(x: Any, q: Any) -> jax.Array:
    x, q = jnp.broadcast_arrays(x, q)
    outside = q <= 0
    pole = (x == 1) | (outside & (q == jnp.floor(q)) & (x > 1))
    undefined = (x < 1) | (outside & (x != jnp.floor(x)))
    return jnp.where(pole, jnp.inf, jnp.where(undefined, jnp.nan, special.zeta(x, q)))


@elementwise(aten.special_erfcx.default)
def scaled_erfc(x: jax.Array) -> jax.Array:
    """exp(x^2) erfc(x)."""
    # DLMF 7.7.1, by the trapezoidal rule: to the last bit of fp32 for x >= 1.
    step = 0.25
    nodes = step * np.arange(-19, 20)
    weights = (step / math.pi * np.exp(-(nodes**2))).astype(np.float32)
    large = jnp.maximum(x, 1)
    integral = jnp.sum(weights / (1 + (nodes.astype(np.float32) / large[..., None]) ** 2), -1) / large
    return jnp.where(x < 1, jnp.exp(x * x) * lax.erfc(x), integral)


@elementwise(aten.special_spherical_bessel_j0.default)
def spherical_bessel_j0(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isinf(x), 0, jnp.where(x == 0, 1, jnp.sin(x) / jnp.where(x == 0, 1, x)))
