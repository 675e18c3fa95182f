"""Operators that work on each element alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.lowering.registry import HALVES, Context, cast, elementwise, lowers, result_dtype

aten = torch.ops.aten


def _in_fp32(function: Callable[..., Any]) -> Callable[..., Any]:
    """It, of 16-bit floats rounded once: JAX makes it of several operations."""
    return lambda x: function(x.astype(jnp.float32)).astype(x.dtype) if x.dtype in HALVES else function(x)


_UNARY: dict[Any, Callable[..., Any]] = {
    aten.abs.default: jnp.abs,
    aten.acos.default: jnp.arccos,
    aten.acosh.default: jnp.arccosh,
    aten.asin.default: jnp.arcsin,
    aten.asinh.default: jnp.arcsinh,
    aten.atan.default: jnp.arctan,
    aten.atanh.default: jnp.arctanh,
    aten.bitwise_not.default: jnp.invert,
    aten.cos.default: jnp.cos,
    aten.cosh.default: jnp.cosh,
    aten.erf.default: lax.erf,
    aten.erfinv.default: lax.erf_inv,
    aten.exp.default: jnp.exp,
    aten.exp2.default: _in_fp32(jnp.exp2),
    aten.expm1.default: jnp.expm1,
    aten.isinf.default: jnp.isinf,
    aten.isnan.default: jnp.isnan,
    aten.log.default: jnp.log,
    aten.log10.default: _in_fp32(jnp.log10),
    aten.log1p.default: jnp.log1p,
    aten.log2.default: _in_fp32(jnp.log2),
    aten.logical_not.default: jnp.logical_not,
    aten.neg.default: jnp.negative,
    aten.reciprocal.default: jnp.reciprocal,
    aten.relu.default: jax.nn.relu,
    aten.rsqrt.default: lax.rsqrt,
    aten.sigmoid.default: jax.nn.sigmoid,
    aten.signbit.default: lambda x: jnp.signbit(x) if jnp.issubdtype(x.dtype, jnp.floating) else x < 0,
    aten.sin.default: jnp.sin,
    aten.sinh.default: jnp.sinh,
    aten.sqrt.default: jnp.sqrt,
    aten.tan.default: jnp.tan,
    aten.tanh.default: jnp.tanh,
}


_BINARY: dict[Any, Callable[..., Any]] = {
    aten.bitwise_and: jnp.bitwise_and,
    aten.bitwise_or: jnp.bitwise_or,
    aten.bitwise_xor: jnp.bitwise_xor,
}


_COMPARISONS: dict[Any, Callable[..., Any]] = {
    aten.eq: jnp.equal,
    aten.ge: jnp.greater_equal,
    aten.gt: jnp.greater,
    aten.le: jnp.less_equal,
    aten.lt: jnp.less,
    aten.ne: jnp.not_equal,
}


def _comparison(function: Callable[..., Any]) -> Callable[..., Any]:
    """It, with an answer too where programs' integers do not reach the number."""

    def compare(x: jax.Array, y: Any) -> jax.Array:
        side = _beyond(x, y)
        return jnp.full(x.shape, function(0, side)) if side else function(x, y)

    return compare


def _beyond(x: jax.Array, number: Any) -> int:
    """1 for a number greater than all integers of the 32 bits that carry 64, -1 for one that is less; else 0."""
    if type(number) is not int or x.dtype != jnp.int32:
        return 0
    return (number > jnp.iinfo(jnp.int32).max) - (number < jnp.iinfo(jnp.int32).min)


for operator, function in _UNARY.items():
    elementwise(operator)(function)
for packet, function in _BINARY.items():
    elementwise(packet.Tensor, packet.Scalar)(function)
for packet, function in _COMPARISONS.items():
    elementwise(packet.Tensor, packet.Scalar)(_comparison(function))

elementwise(aten.mul.Tensor, aten.mul.Scalar, exact_number=True)(jnp.multiply)
elementwise(aten.atan2.default)(jnp.arctan2)
elementwise(
    *(aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar),
    *(aten.__lshift__.Tensor, aten.__lshift__.Scalar),
)(jnp.left_shift)
elementwise(
    *(aten.bitwise_right_shift.Tensor, aten.bitwise_right_shift.Tensor_Scalar),
    *(aten.__rshift__.Tensor, aten.__rshift__.Scalar),
)(jnp.right_shift)
elementwise(aten.bitwise_left_shift.Scalar_Tensor)(jnp.left_shift)
elementwise(aten.bitwise_right_shift.Scalar_Tensor)(jnp.right_shift)
elementwise(aten.copysign.Tensor, aten.copysign.Scalar)(jnp.copysign)
elementwise(aten.fmax.default)(jnp.fmax)
elementwise(aten.fmin.default)(jnp.fmin)
elementwise(aten.hypot.default)(jnp.hypot)
elementwise(aten.maximum.default)(jnp.maximum)
elementwise(aten.minimum.default)(jnp.minimum)
elementwise(aten.nextafter.default)(jnp.nextafter)
elementwise(aten.logical_and.default)(jnp.logical_and)
elementwise(aten.logical_or.default)(jnp.logical_or)
elementwise(aten.logical_xor.default)(jnp.logical_xor)


@elementwise(aten.div.Tensor, aten.div.Scalar, exact_number=True)
def div(x: jax.Array, y: Any) -> jax.Array:
    """Of 16-bit floats in fp32: XLA multiplies by the reciprocal of a number, which 16 bits would round."""
    return jnp.divide(x.astype(jnp.float32) if x.dtype in HALVES else x, y)


@elementwise(aten.sign.default)
def sign(x: jax.Array) -> jax.Array:
    """0 of a NaN, as PyTorch's."""
    return x if x.dtype.kind == "b" else cast(x > 0, x.dtype) - cast(x < 0, x.dtype)


@elementwise(aten.add.Tensor, aten.add.Scalar)
def add(x: jax.Array, y: Any, alpha: float = 1) -> jax.Array:
    return x + y if alpha == 1 else _scaled_sum(x, y, alpha)


@elementwise(aten.sub.Tensor, aten.sub.Scalar)
def sub(x: jax.Array, y: Any, alpha: float = 1) -> jax.Array:
    return x - y if alpha == 1 else _scaled_sum(x, y, -alpha)


def _scaled_sum(x: jax.Array, y: Any, alpha: float) -> jax.Array:
    """`x + alpha * y`, rounded once."""
    if x.dtype not in HALVES:
        return x + y * alpha
    wide_x, wide_y, scale = (jnp.asarray(each, x.dtype).astype(jnp.float32) for each in (x, y, alpha))
    return (wide_x + wide_y * scale).astype(x.dtype)


@elementwise(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(x: Any, y: Any) -> jax.Array:
    if isinstance(y, float) and abs(y) == 0.5:  # as PyTorch: of -inf no number
        return lax.sqrt(x) if y > 0 else lax.rsqrt(x)
    if isinstance(y, (int, float)) and float(y).is_integer():
        return lax.integer_pow(x, int(y))
    if not (isinstance(y, jax.Array) and jnp.issubdtype(y.dtype, jnp.integer)):
        return jnp.power(x, y)
    # Integers: what is below one in size becomes 0.
    x = jnp.asarray(x, y.dtype)
    inverse = jnp.where(x == 1, 1, jnp.where(x == -1, 1 - 2 * (y & 1), 0))
    return jnp.where(y < 0, inverse, _whole_power(x, y)).astype(y.dtype)


def _whole_power(x: jax.Array, y: jax.Array) -> jax.Array:
    """By squares, of all bits of the exponent; JAX's own is of the last six."""

    def bit(place: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        product, square = state
        return jnp.where((y >> place) & 1, product * square, product), square * square

    x, y = jnp.broadcast_arrays(x, y)
    return lax.fori_loop(0, jnp.iinfo(y.dtype).bits, bit, (jnp.ones_like(x), x))[0]


@elementwise(aten.ldexp.Tensor)
def ldexp(x: jax.Array, exponent: jax.Array) -> jax.Array:
    return x * jnp.exp2(exponent)


@lowers(aten.frexp.Tensor)
def frexp(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    mantissa, exponent = jnp.frexp(x.astype(jnp.float32))
    return mantissa.astype(x.dtype), exponent


@elementwise(aten.clamp.default, aten.clamp.Tensor)
def clamp(x: jax.Array, min: Any = None, max: Any = None) -> jax.Array:
    """Bounds that no integer of the program reaches are none."""
    return jnp.clip(x, None if _beyond(x, min) < 0 else min, None if _beyond(x, max) > 0 else max)


@lowers(aten.where.self, context=True)
def where(ctx: Context, condition: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    dtype = result_dtype(ctx)
    return jnp.where(condition, x.astype(dtype), y.astype(dtype))


@lowers(aten._to_copy.default, torch.ops.prims.convert_element_type.default, context=True)
def to_copy(ctx: Context, x: jax.Array, *dtype: object, **options: object) -> jax.Array:
    target = result_dtype(ctx)
    complex_to_real = jnp.iscomplexobj(x) and target.kind not in "cb"
    return cast(x.real if complex_to_real else x, target)


@lowers(aten.copy.default, context=True)
def copy(ctx: Context, x: jax.Array, source: jax.Array, non_blocking: bool = False) -> jax.Array:
    return jnp.broadcast_to(source, x.shape).astype(result_dtype(ctx))
