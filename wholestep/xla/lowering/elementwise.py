"""Operators that work on each element alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.lowering.registry import Context, elementwise, lowers, result_dtype

aten = torch.ops.aten

_UNARY: dict[Any, Callable[..., Any]] = {
    aten.abs.default: jnp.abs,
    aten.bitwise_not.default: jnp.invert,
    aten.cos.default: jnp.cos,
    aten.erf.default: lax.erf,
    aten.erfinv.default: lax.erf_inv,
    aten.exp.default: jnp.exp,
    aten.expm1.default: jnp.expm1,
    aten.isinf.default: jnp.isinf,
    aten.isnan.default: jnp.isnan,
    aten.log.default: jnp.log,
    aten.log1p.default: jnp.log1p,
    aten.logical_not.default: jnp.logical_not,
    aten.neg.default: jnp.negative,
    aten.reciprocal.default: jnp.reciprocal,
    aten.relu.default: jax.nn.relu,
    aten.rsqrt.default: lax.rsqrt,
    aten.sigmoid.default: jax.nn.sigmoid,
    aten.sign.default: lambda x: (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype),  # 0 of a NaN, as PyTorch's
    aten.sin.default: jnp.sin,
    aten.sqrt.default: jnp.sqrt,
    aten.tanh.default: jnp.tanh,
}


_BINARY: dict[Any, Callable[..., Any]] = {
    aten.bitwise_and: jnp.bitwise_and,
    aten.bitwise_or: jnp.bitwise_or,
    aten.bitwise_xor: jnp.bitwise_xor,
    aten.div: jnp.divide,
    aten.eq: jnp.equal,
    aten.ge: jnp.greater_equal,
    aten.gt: jnp.greater,
    aten.le: jnp.less_equal,
    aten.lt: jnp.less,
    aten.mul: jnp.multiply,
    aten.ne: jnp.not_equal,
}

for operator, function in _UNARY.items():
    elementwise(operator)(function)
for packet, function in _BINARY.items():
    elementwise(packet.Tensor, packet.Scalar)(function)

elementwise(aten.maximum.default)(jnp.maximum)
elementwise(aten.minimum.default)(jnp.minimum)
elementwise(aten.logical_and.default)(jnp.logical_and)
elementwise(aten.logical_or.default)(jnp.logical_or)


@elementwise(aten.add.Tensor, aten.add.Scalar)
def add(x: jax.Array, y: jax.Array, alpha: float = 1) -> jax.Array:
    return x + (y if alpha == 1 else y * alpha)


@elementwise(aten.sub.Tensor, aten.sub.Scalar)
def sub(x: jax.Array, y: jax.Array, alpha: float = 1) -> jax.Array:
    return x - (y if alpha == 1 else y * alpha)


@elementwise(aten.div.Tensor_mode, aten.div.Scalar_mode)
def rounded_division(x: jax.Array, y: jax.Array, *, rounding_mode: str | None) -> jax.Array:
    if rounding_mode is None:
        return jnp.divide(x, y)
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    return lax.div(x, jnp.broadcast_to(jnp.asarray(y, x.dtype), x.shape)) if x.dtype.kind == "i" else jnp.trunc(x / y)


@elementwise(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(x: jax.Array, y: jax.Array) -> jax.Array:
    if isinstance(y, (int, float)) and float(y).is_integer():
        return lax.integer_pow(x, int(y))
    return jnp.power(x, y)


@elementwise(aten.clamp.default)
def clamp(x: jax.Array, min: float | None = None, max: float | None = None) -> jax.Array:
    return jnp.clip(x, min, max)


@lowers(aten.where.self, context=True)
def where(ctx: Context, condition: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    dtype = result_dtype(ctx)
    return jnp.where(condition, x.astype(dtype), y.astype(dtype))


@lowers(aten._to_copy.default, context=True)
def to_copy(ctx: Context, x: jax.Array, **options: object) -> jax.Array:
    dtype = result_dtype(ctx)
    complex_to_real = jnp.iscomplexobj(x) and dtype.kind not in "cb"
    return (x.real if complex_to_real else x).astype(dtype)


@lowers(aten.copy.default, context=True)
def copy(ctx: Context, x: jax.Array, source: jax.Array, non_blocking: bool = False) -> jax.Array:
    return jnp.broadcast_to(source, x.shape).astype(result_dtype(ctx))
