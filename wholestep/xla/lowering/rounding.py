"""Rounding, remainders and division of integers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.lowering.registry import elementwise

aten = torch.ops.aten


def _of_integers_too(rounded: Any) -> Any:
    """JAX would make floats of integers."""
    return lambda x: rounded(x) if jnp.issubdtype(x.dtype, jnp.floating) else x


elementwise(aten.ceil.default)(_of_integers_too(jnp.ceil))
elementwise(aten.floor.default)(_of_integers_too(jnp.floor))
elementwise(aten.trunc.default)(_of_integers_too(jnp.trunc))
elementwise(aten.round.default)(_of_integers_too(lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)))
elementwise(aten.gcd.default)(jnp.gcd)
elementwise(aten.lcm.default)(jnp.lcm)


@elementwise(aten.round.decimals)
def round_to_decimals(x: jax.Array, *, decimals: int) -> jax.Array:
    scale = 10.0 ** abs(decimals)
    wide = x.astype(jnp.float32)
    rounded = jnp.round(wide * scale) / scale if decimals >= 0 else jnp.round(wide / scale) * scale
    return rounded.astype(x.dtype)


@elementwise(aten.fmod.Tensor, aten.fmod.Scalar)
def remainder_with_the_dividends_sign(x: jax.Array, y: Any) -> jax.Array:
    return lax.rem(*jnp.broadcast_arrays(x, jnp.asarray(y, x.dtype)))


@elementwise(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder_with_the_divisors_sign(x: Any, y: Any) -> jax.Array:
    return jnp.remainder(x, y)


@elementwise(aten.div.Tensor_mode, aten.div.Scalar_mode, exact_number=True)
def rounded_division(x: jax.Array, y: Any, *, rounding_mode: str | None) -> jax.Array:
    if rounding_mode is None:
        return jnp.divide(x, y)
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.trunc(x / y)
    return lax.div(*jnp.broadcast_arrays(x, jnp.asarray(y, x.dtype)))
