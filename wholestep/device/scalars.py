"""Python numbers that operators are given, as inputs of their programs: one that changes from step to step, a learning
rate or a bias correction, would otherwise make a program of each of its values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

HALVES = {torch.bfloat16, torch.float16}
_INTEGRAL = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_RANK = {torch.bool: 0, torch.int64: 1, torch.float64: 2, torch.complex128: 3}


def number_dtype(dtype: torch.dtype, others: Sequence[torch.dtype]) -> torch.dtype:
    """The dtype that a number has beside tensors of these, by PyTorch's rules: theirs, unless they hold a lesser kind.

    Args:
        dtype: of the number alone.
    """
    if dtype not in _RANK:
        return dtype
    kinds = [other for other in others if _rank(other) >= _RANK[dtype]]
    if kinds:
        return functools.reduce(torch.promote_types, kinds)
    return {torch.float64: torch.get_default_dtype(), torch.complex128: torch.complex64}.get(dtype, dtype)


def _rank(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


def scaled_sum(x: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
    """`x + alpha * y`."""
    dtype = torch.result_type(x, y)
    if alpha.is_floating_point() and dtype in _INTEGRAL:
        raise RuntimeError("for integral tensors, alpha must not be a floating-point number")
    return (wide(x) + wide(y) * wide(alpha.to(dtype))).to(dtype)


def scaled_difference(x: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
    """`x - alpha * y`."""
    return scaled_sum(x, y, -alpha)


def scaled_product(x: Tensor, a: Tensor, b: Tensor, value: Tensor) -> Tensor:
    """`x + value * a * b`."""
    dtype = torch.result_type(x, a * b)
    value = value.to(dtype) if dtype in _INTEGRAL else value
    return (wide(x) + value * wide(a) * wide(b)).to(dtype)


def scaled_quotient(x: Tensor, a: Tensor, b: Tensor, value: Tensor) -> Tensor:
    """`x + value * a / b`."""
    if not (a.dtype.is_floating_point or b.dtype.is_floating_point or a.is_complex() or b.is_complex()):
        raise RuntimeError("addcdiv divides no integers; use torch.div with a rounding mode")
    return (wide(x) + value * wide(a) / wide(b)).to(torch.result_type(x, a / b))


def weighted_mean(x: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """`x + weight * (end - x)`."""
    if not (x.is_floating_point() or x.is_complex()):
        raise RuntimeError(f"lerp is not defined for {x.dtype}")
    start = wide(x)
    return torch.lerp(start, wide(end), weight.to(start.dtype)).to(x.dtype)


def wide(x: Tensor) -> Tensor:
    """16-bit floats in fp32, in which PyTorch computes with them, to round once."""
    return x.float() if x.dtype in HALVES else x


# Operators with a number whose value may change while all else stays, by the number's name.
_NUMBERS: dict[Any, tuple[str, Callable[..., Tensor]]] = {
    aten.add.Tensor: ("alpha", scaled_sum),
    aten.sub.Tensor: ("alpha", scaled_difference),
    aten.addcmul.default: ("value", scaled_product),
    aten.addcdiv.default: ("value", scaled_quotient),
    aten.lerp.Scalar: ("weight", weighted_mean),
}


def _into(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, *args, **kwargs: x.copy_(function(x, *args, **kwargs))


for _operator in (aten.add_.Tensor, aten.sub_.Tensor, aten.addcmul_.default, aten.addcdiv_.default, aten.lerp_.Scalar):
    _packet = getattr(aten, _operator._schema.name.removeprefix("aten::").removesuffix("_"))
    _name, _function = _NUMBERS[getattr(_packet, _operator._overloadname)]
    _NUMBERS[_operator] = (_name, _into(_function))
_NUMBERS[aten.fill_.Scalar] = ("value", lambda x, value: x.copy_(value.expand(x.shape)))


def changing_number(operator: Any) -> str | None:
    """The name of the operator's number that is an input of its program, if it has one."""
    entry = _NUMBERS.get(operator)
    return entry[0] if entry else None


def with_tensor(operator: Any) -> Callable[..., Any]:
    """The operator as a function that takes that number as a tensor without dimensions."""
    return _NUMBERS[operator][1]
