"""Complex numbers: their parts, and views that PyTorch has of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten

lowers(aten._conj.default, aten._conj_physical.default, aten.conj_physical.default)(jnp.conj)
lowers(aten._neg_view.default)(jnp.negative)
lowers(aten.real.default)(jnp.real)
lowers(aten.imag.default)(jnp.imag)


@lowers(aten.view_as_real.default)
def view_as_real(x: jax.Array) -> jax.Array:
    return jnp.stack([jnp.real(x), jnp.imag(x)], -1)


@lowers(aten.view_as_complex.default)
def view_as_complex(x: jax.Array) -> jax.Array:
    return lax.complex(x[..., 0], x[..., 1])


@lowers(aten.complex.default)
def complex_(real: jax.Array, imaginary: jax.Array) -> jax.Array:
    return lax.complex(*jnp.broadcast_arrays(real, imaginary))


@lowers(aten.polar.default)
def polar(absolute: jax.Array, angle: jax.Array) -> jax.Array:
    return complex_(absolute * jnp.cos(angle), absolute * jnp.sin(angle))


@lowers(aten.angle.default, context=True)
def angle(ctx: Context, x: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(x):
        return jnp.angle(x)
    x = x.astype(result_dtype(ctx))  # of an integer it is a float
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, jnp.asarray(jnp.pi, x.dtype), jnp.zeros_like(x)))
