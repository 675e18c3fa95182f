"""Samples of every operator that has a lowering: one row a sample, `test_lowering.py` runs them all.

A row is the operator and its arguments. What PyTorch gives for them is what the lowering must give: value, shape and
dtype. A row with `reference` compares with that function instead, where PyTorch's own has no CPU kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
inf, nan, LAST = math.inf, math.nan, 2**63 - 1
_generator = torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class Sample:
    """One call of an operator; `values` is False where PyTorch leaves the result's values open."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reference: Callable[..., Any]
    values: bool = True


def row(target: Any, *args: Any, reference: Callable[..., Any] | None = None, **kwargs: Any) -> Sample:
    return Sample(target, args, kwargs, reference or target)


def f32(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_generator)


def bf16(*shape: int) -> Tensor:
    return f32(*shape).bfloat16()


def f16(*shape: int) -> Tensor:
    return f32(*shape).half()


def i64(*shape: int, low: int = -4, high: int = 5) -> Tensor:
    return torch.randint(low, high, shape, generator=_generator)


def flags(*shape: int) -> Tensor:
    return i64(*shape) > 0


def c64(*shape: int) -> Tensor:
    return torch.complex(f32(*shape), f32(*shape))


def definite(make: Callable[..., Tensor], *shape: int) -> Tensor:
    """Positive definite matrices."""
    x = make(*shape)
    return x @ x.mH + torch.eye(shape[-1])


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan])
# Without ties, among which PyTorch leaves the order open.
DISTINCT = torch.randperm(20, generator=_generator).view(4, 5).float() / 4 - 2
PROBABLE = torch.log_softmax(f32(5, 7), -1)
SPREAD = f32(4, 5)
LABELS = torch.tensor([3, 0, -100, 6, -100])
IGNORED = torch.full((5,), -100)
CLASS_WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.0, 3.0, 1.5, 0.25])
INDICES = torch.tensor([[3, 0, 3], [1, 3, 0]])
# Each place along the first dimension of [3, 4] more than once, some never.
PLACES = torch.tensor([[0, 1, 2, 0], [0, 1, 1, 2]])
ENDS = torch.tensor([3, 0, 3])
MASK = torch.tensor([[True, False, True, False], [False] * 4, [True, True, False, True]])
WITH_NAN = torch.where(torch.arange(20).view(4, 5) % 7 == 3, nan, DISTINCT)
EDGES = torch.tensor([-1.0, 0.0, 0.5, 2.0])

BAGS = (torch.tensor([3, 0, 3, 1, 4, 4, 2]), torch.tensor([0, 2, 5, 5]))
BAG_OF, BAG_SIZES = torch.tensor([0, 0, 1, 1, 1, 3, 3]), torch.tensor([2, 3, 0, 2])
MANY_LABELS = torch.tensor([[2, 0, -1, 1], [-1, 3, 0, 2]])


def _max_pooled(pool: Any, x: Tensor, dims: int) -> tuple[Any, ...]:
    """Arguments of the gradient of a pooling of this tensor."""
    options = ([3] * dims, [2] * dims, [1] * dims, [1] * dims, True)
    values, indices = pool(x, *options)
    return f32(*values.shape), x, *options, indices


def _attended(x: Tensor) -> tuple[Tensor, ...]:
    """The first arguments of the gradient of a causal attention of this tensor."""
    q, k, v = x, x.sin(), x.cos()
    return f32(*x.shape), q, k, v, *aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)


_FLOATING = ["cos", "erf", "erfinv", "exp", "expm1", "log", "log1p", "reciprocal", "rsqrt", "sigmoid", "sin", "sqrt"]
_ANY = [*_FLOATING, "tanh", "isinf", "isnan", "logical_not"]
_SIGNED = ["abs", "neg", "relu", "sign"]
_COMPARE = ["eq", "ge", "gt", "le", "lt", "ne"]
_BITWISE = ["bitwise_and", "bitwise_or", "bitwise_xor"]
_BOOLEAN = [*_COMPARE, *_BITWISE, "mul"]


def _op(name: str, overload: str = "default") -> Any:
    return getattr(getattr(aten, name), overload)


_TRIGONOMETRIC = ["acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan"]
_SPECIAL = ["i0", "special_i0e", "special_i1", "special_i1e", "erfc", "exp2", "log10", "log2"]
_BESSEL = [
    *(f"bessel_{kind}" for kind in ("j0", "j1", "y0", "y1")),
    *(f"modified_bessel_{kind}" for kind in ("i0", "i1", "k0", "k1")),
    *(f"scaled_modified_bessel_{kind}" for kind in ("k0", "k1")),
    *("airy_ai", "erfcx", "ndtri", "spherical_bessel_j0"),
]
_CHEBYSHEV = [f"chebyshev_polynomial_{kind}" for kind in "tuvw"]
_POLYNOMIAL = [
    *(*_CHEBYSHEV, *(f"shifted_{name}" for name in _CHEBYSHEV)),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
]
_ARGUMENTS = torch.tensor([-12.5, -3, -1, -0.3, 0, 1e-3, 0.2, 0.75, 0.99, 1, 1.01, 1.7, 2.5, 6, 11, 25, inf, nan])
_DEGREES = torch.tensor([-1.0, 0, 1, 2, 3.5, 8])
_DECIMAL = torch.tensor([-2.5, -0.5, 0.5, 1.5, 12345.678, -0.12345, inf, nan])

SAMPLES = [
    # Element-wise, special and random functions of PyTorch's operator database.
    *(row(_op(name), x) for name in [*_TRIGONOMETRIC, *_SPECIAL] for x in (f32(3, 4), bf16(5), SPECIAL, i64(6), f32())),
    *(row(_op(f"special_{name}"), x) for name in _BESSEL for x in (_ARGUMENTS[:-2], SPECIAL[[0, 2]], i64(6), f32())),
    *(row(_op(f"special_{name}"), f32(5, 1), _DEGREES) for name in _POLYNOMIAL),
    *(row(_op(f"special_{name}", "x_scalar"), 0.3, _DEGREES) for name in _POLYNOMIAL),
    *(row(_op(f"special_{name}", "n_scalar"), f32(5), 3) for name in _POLYNOMIAL),
    row(aten.special_zeta.default, torch.tensor([[2.0], [3.5], [1.0], [0.5]]), torch.tensor([1.0, 0.3, -0.5, -2.0])),
    row(aten.special_zeta.self_scalar, 2.0, f32(5).abs()),
    row(aten.special_zeta.other_scalar, f32(5).abs() + 1.5, 2.0),
    *(row(_op(name), x) for name in ("ceil", "floor", "trunc", "round") for x in (_DECIMAL, bf16(5), i64(6))),
    *(row(aten.round.decimals, x, decimals=d) for x in (_DECIMAL, bf16(5)) for d in (0, 2, -1)),
    *(row(_op(name), i64(6), i64(4, 1)) for name in ("gcd", "lcm")),
    *(
        row(_op(name, overload), x, y)
        for name in ("fmod", "remainder")
        for overload, x, y in (
            ("Tensor", f32(6), f32(6)),
            ("Tensor", bf16(6), bf16(6)),
            ("Tensor", i64(6), i64(4, 1, low=1)),
            ("Scalar", f32(6), -0.75),
            ("Scalar", i64(6), -3),
        )
    ),
    row(aten.remainder.Scalar_Tensor, 7, i64(6, low=1)),
    row(aten.div.Tensor_mode, i64(6), i64(4, 1, low=1), rounding_mode="trunc"),
    *(
        row(_op(f"bitwise_{side}_shift", overload), x, y)
        for side in ("left", "right")
        for overload, x, y in (
            ("Tensor", i64(6), i64(6, low=0)),
            ("Tensor_Scalar", i64(6), 2),
            ("Scalar_Tensor", 5, i64(6, low=0)),
        )
    ),
    *(row(_op(name), x, y) for name in ("fmax", "fmin") for x, y in ((f32(6), f32(6)), (SPECIAL, SPECIAL.flip(0)))),
    *(row(_op(name), f32(6), f32(4, 1)) for name in ("atan2", "hypot", "nextafter")),
    row(aten.logical_xor.default, i64(6), f32(6)),
    row(aten.copysign.Tensor, f32(6), i64(6)),
    row(aten.copysign.Scalar, i64(6), -0.0),
    row(aten.ldexp.Tensor, f32(6), i64(6)),
    *(row(aten.frexp.Tensor, x) for x in (f32(6), bf16(6), torch.tensor([0.0, -0.0, 1.0, 0.5, 1024.0]))),
    *(row(aten.signbit.default, x) for x in (SPECIAL, i64(6), flags(6))),
    *(row(aten.sign.default, x) for x in (SPECIAL, flags(6))),
    row(aten.clamp.Tensor, f32(4, 6), f32(6), f32(4, 1)),
    row(aten.clamp.Tensor, f32(6), None, f32(6)),
    row(aten.pow.Tensor_Tensor, torch.tensor([-2, -1, 0, 1, 3])[:, None], torch.tensor([-3, -2, 0, 1, 5])),
    row(aten.pow.Scalar, -1, i64(6)),
    *(
        row(_op("linspace", overload), start, end, steps, dtype=dtype)
        for overload, start, end in (
            ("default", -7, 4),
            ("Tensor_Tensor", torch.tensor(-7), torch.tensor(4)),
            ("Tensor_Scalar", torch.tensor(-7), 4),
            ("Scalar_Tensor", -7, torch.tensor(4)),
        )
        for steps in (1, 2, 50)
        for dtype in (torch.float32, torch.int64)
    ),
    row(aten._efficientzerotensor.default, [3, 2], reference=torch.zeros),
    *(row(aten.arange.start_step, *bounds, dtype=torch.int64) for bounds in ((0.5, 5.5, 1.0), (2, 9, 3), (4, -3, -2))),
    # Element-wise, one operand.
    *(row(_op(name), x) for name in [*_ANY, *_SIGNED] for x in (f32(3, 4), bf16(5), SPECIAL, i64(6), f32())),
    *(row(_op(name), x) for name in _ANY for x in (flags(4), f32(0, 3))),
    *(row(aten.bitwise_not.default, x) for x in (flags(3), i64(3), torch.tensor(True), i64(3).to(torch.uint8))),
    # Element-wise, two operands. A tensor without dimensions and a Python number widen a tensor only to another kind.
    *(
        row(_op(name, "Tensor"), x, y)
        for name in [*_COMPARE, "add", "sub", "mul", "div"]
        for x, y in [
            (f32(3, 1), f32(4)),
            (bf16(3), f32(3)),
            (bf16(3), f32()),
            (f32(), bf16(3)),
            (i64(3), bf16()),
            (i64(3), i64(3, low=1)),
            (SPECIAL, SPECIAL.flip(0)),
            (f32(0, 3), f32(3)),
        ]
    ),
    *(
        row(_op(name, "Tensor"), x, y)
        for name in ("add", "sub", "mul", "div")
        for x, y in [(i64(3), 2.5), (bf16(3), 0.1), (i64(), 3), (f32(3), 2)]
    ),
    *(row(_op(name, "Tensor"), x, True) for name in ("add", "mul", "div") for x in (f32(3), flags(3), i64(3))),
    *(row(_op(name, "Tensor"), flags(6), flags(6)) for name in [*_BOOLEAN, "div", "add"]),
    *(row(_op(name, "Tensor"), flags(6), y) for name in _BOOLEAN for y in (i64(6), i64(6).to(torch.uint8))),
    *(row(_op(name, "Scalar"), x, 3) for name in [*_COMPARE, *_BITWISE, "add", "sub", "mul", "div"] for x in (i64(4),)),
    *(row(_op(name, "Scalar"), x, 0.5) for name in [*_COMPARE, "mul", "div"] for x in (f32(4), bf16(4), i64(4))),
    *(row(_op(name, "Scalar"), flags(4), True) for name in _BOOLEAN),
    *(row(_op(name, "Tensor"), i64(4), i64(4)) for name in _BITWISE),
    *(row(_op(name, "Scalar"), x, 1.5, 2.0) for name in ("add", "sub") for x in (f32(4), bf16(4))),
    *(row(_op(name, "Tensor"), f32(4), f32(4), alpha=-2.5) for name in ("add", "sub")),
    *(row(_op(name, "Tensor"), i64(4), i64(4), alpha=3) for name in ("add", "sub")),
    *(
        row(_op(name), x, y)
        for name in ("maximum", "minimum")
        for x, y in [(f32(4), f32(4)), (bf16(4), f32()), (i64(4), f32(3, 1)), (SPECIAL, f32(7)), (flags(4), flags(4))]
    ),
    *(
        row(_op(name), x, y)
        for name in ("logical_and", "logical_or")
        for x, y in [(flags(6), flags(6)), (SPECIAL, flags(7)), (i64(6), f32(6)), (flags(2, 1), i64())]
    ),
    *(row(aten.pow.Tensor_Scalar, f32(5), y) for y in (2, 3, 0, -1, -2, 2.0)),
    *(row(aten.pow.Tensor_Scalar, f32(5).abs(), y) for y in (0.5, -0.5, 1.7)),
    *(row(aten.pow.Tensor_Scalar, x, 2) for x in (bf16(4), i64(4), flags(4), SPECIAL)),
    row(aten.pow.Tensor_Scalar, i64(4, low=1), 0.5),
    *(row(aten.pow.Scalar, base, y) for base, y in [(2, f32(4)), (0.5, i64(4)), (3, i64(4, low=0)), (2, bf16(4))]),
    row(aten.pow.Tensor_Tensor, f32(3, 4).abs(), f32(4)),
    row(aten.pow.Tensor_Tensor, bf16(4).abs(), f32()),
    row(aten.pow.Tensor_Tensor, i64(4), i64(4, low=0)),
    *(row(aten.clamp.default, f32(8), *bounds) for bounds in [(-0.5, 0.5), (None, 0.1), (0.1,), (0.5, -0.5)]),
    *(row(aten.clamp.default, x, -1, 1) for x in (bf16(8), i64(8), SPECIAL)),
    row(aten.clamp.default, i64(8), -0.5, 1.5),
    row(aten.clamp.default, i64(8), min=0.5),
    *(
        row(aten.where.self, flags(3, 1), x, y)
        for x, y in [(f32(3, 4), f32(4)), (f32(3, 4), bf16()), (i64(4), f32()), (bf16(3, 1), f32()), (SPECIAL, f32())]
    ),
    *(
        row(aten._to_copy.default, x, dtype=dtype)
        for x in (torch.tensor([-2.5, -0.5, 0.0, 0.7, 3.9]), bf16(5), i64(5), flags(5))
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool)
    ),
    row(aten._to_copy.default, f32(3)),
    row(torch.ops.prims.convert_element_type.default, f32(3), torch.int64),
    row(torch.ops.prims.convert_element_type.default, i64(3), torch.bfloat16),
    row(aten.copy.default, f32(3, 4), bf16(4)),
    row(aten.copy.default, i64(3), torch.tensor(2.9)),
    # Reductions. No dimension, or an empty list of them, means all.
    *(
        row(op, x, dim, keepdim)
        for op in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default)
        for x in (f32(2, 3, 4), bf16(2, 3, 4))
        for dim, keepdim in [([0], False), ([-1], True), ([0, -1], False), ([-2, 0], True), ([], False), ([], True)]
    ),
    *(row(op, f32(2, 3), None, True) for op in (aten.sum.dim_IntList, aten.mean.dim)),
    *(
        row(op, f32(), [dim])
        for op in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default)
        for dim in (0, -1)
    ),
    *(row(aten.sum.dim_IntList, x, [0]) for x in (i64(3, 2), flags(3, 2), f32(0, 2), flags(3, 2).to(torch.uint8))),
    *(row(aten.sum.default, x) for x in (f32(2, 3), bf16(300), i64(4), flags(9), f32(0), f32())),
    row(aten.sum.default, bf16(400), dtype=torch.float32),
    row(aten.sum.default, f32(40), dtype=torch.int64),
    row(aten.sum.dim_IntList, flags(4, 3), [0], dtype=torch.float32),
    *(row(aten.mean.default, x) for x in (f32(2, 3), bf16(300), f32(), f32(0))),
    row(aten.mean.default, i64(7), dtype=torch.float32),
    row(aten.mean.dim, bf16(4, 300), [1], dtype=torch.float32),
    *(row(op, x) for op in (aten.amax.default, aten.amin.default) for x in (f32(2, 3), i64(4), flags(4), SPECIAL)),
    *(row(aten.any.default, x) for x in (flags(4), torch.zeros(2, 2), SPECIAL, i64(3), flags(0))),
    row(aten.any.default, flags(4).to(torch.uint8)),
    *(row(aten.any.dim, flags(3, 4), *dim) for dim in [(0,), (-1, True)]),
    row(aten.any.dim, torch.tensor(True), 0),
    *(row(aten.any.dims, flags(3, 4), *dims) for dims in [([0, -1],), ([-1], True), (None,), (None, True), ([],)]),
    *(
        row(op, x, dim, False)
        for op in (aten._softmax.default, aten._log_softmax.default)
        for x, dim in [(f32(3, 5) * 30, -1), (bf16(3, 5), 0), (f32(), -1), (torch.tensor([[0.0, -inf], [-inf, 1]]), 1)]
    ),
    row(aten._softmax.default, torch.full((2, 2), -inf), -1, False),
    row(aten._softmax.default, f16(3, 5), -1, True, reference=lambda x, dim, _: torch.softmax(x.float(), dim)),
    row(aten._log_softmax.default, f16(3, 5), 1, True, reference=lambda x, dim, _: torch.log_softmax(x.float(), dim)),
    # Shapes.
    *(row(op, x, s) for op in (aten.view.default, aten._unsafe_view.default) for x, s in [(f32(4, 3), [2, -1])]),
    *(
        row(aten.view.default, x, shape)
        for x, shape in [(f32(2, 3), [6]), (f32(), [1, 1]), (i64(1), []), (f32(0), [0])]
    ),
    *(row(aten.permute.default, f32(2, 3, 4), dims) for dims in ([2, 0, 1], [-1, 0, -2])),
    row(aten.permute.default, f32(), []),
    *(row(aten.expand.default, f32(3, 1), shape) for shape in ([3, 4], [-1, 5], [2, -1, 4])),
    row(aten.expand.default, i64(), [2, 3]),
    *(row(aten.unsqueeze.default, f32(2, 3), dim) for dim in (0, 1, 2, -1, -3)),
    row(aten.unsqueeze.default, f32(), -1),
    *(row(aten.squeeze.dim, f32(1, 2, 1), dim) for dim in (0, 1, -1)),
    *(row(aten.squeeze.dims, f32(1, 2, 1), dims) for dims in ([0, 2], [-1, 1], [])),
    *(row(aten.squeeze.default, x) for x in (f32(1, 2, 1), f32(1), f32(2))),
    *(
        row(aten.slice.Tensor, f32(5, 6), *at)
        for at in [
            (),
            (0, 1, 3),
            (-1, -2, LAST),
            (1, 0, LAST, 2),
            (0, 4, 2),
            (1, -100, 100, 4),
            (0, 1, -1),
            (0, None, 2),
        ]
    ),
    *(row(aten.select.int, f32(3, 4), *at) for at in [(0, 0), (1, -1), (-1, 2), (-2, -3)]),
    row(aten.select.int, i64(3), 0, 1),
    *(row(aten.split_with_sizes.default, f32(6, 5), *at) for at in [([1, 2, 3],), ([2, 3], -1), ([6, 0], 0)]),
    *(row(aten.cat.default, [f32(2, 3), f32(2, 1)], dim) for dim in (1, -1)),
    *(row(aten.roll.default, x, [shift], [-1]) for x in (f32(2, 6), bf16(2, 6), i64(2, 6)) for shift in (3, -1, 7)),
    row(aten.roll.default, f32(2, 3), [4]),
    row(aten.roll.default, bf16(2, 3), [1, 2], [1, 0]),
    *(
        row(aten.cat.default, tensors)
        for tensors in ([f32(2)], [bf16(2), f32(3)], [i64(2), bf16(1)], [flags(1), i64(2)])
    ),
    *(row(aten.cat.default, [torch.empty(0), x], 1) for x in (f32(2, 3), bf16(2, 3))),
    *(row(aten.stack.default, [f32(2, 3), f32(2, 3)], *dim) for dim in [(), (1,), (-1,)]),
    row(aten.stack.default, [f32(), f32(), f32()]),
    *(row(aten.unbind.int, f32(2, 3), *dim) for dim in [(), (1,), (-2,)]),
    *(row(aten.constant_pad_nd.default, f32(2, 3), pad) for pad in ([1, 2], [0, 0, 3, 0], [-1, 1], [1, -2, -1, 0], [])),
    row(aten.constant_pad_nd.default, bf16(2, 3), [1, 1], -inf),
    row(aten.constant_pad_nd.default, flags(3), [1, 1], True),
    *(row(aten.constant_pad_nd.default, i64(3), [1, 1], value) for value in (7, 2.5)),
    *(row(aten.slice_scatter.default, f32(5, 4), f32(2, 4), *at) for at in [(0, 1, 3), (0, -2, LAST), (-2, 0, 4, 2)]),
    row(aten.slice_scatter.default, f32(5, 4), f32(5, 2), -1, 1, -1),
    *(row(aten.select_scatter.default, f32(3, 4), f32(4), *at) for at in [(0, 1), (-2, -1)]),
    row(aten.select_scatter.default, i64(3), i64(), 0, -1),
    # Matrix products.
    *(
        row(aten.mm.default, x, y)
        for x, y in [(f32(3, 4), f32(4, 5)), (bf16(3, 4), bf16(4, 5)), (f32(3, 0), f32(0, 5))]
    ),
    row(aten.mm.default, i64(3, 4), i64(4, 2)),
    *(row(aten.bmm.default, x, y) for x, y in [(f32(2, 3, 4), f32(2, 4, 5)), (bf16(2, 3, 4), bf16(2, 4, 5))]),
    *(row(aten.addmm.default, bias, f32(3, 4), f32(4, 5)) for bias in (f32(5), f32(3, 5), f32(3, 1), f32())),
    row(aten.addmm.default, bf16(5), bf16(3, 4), bf16(4, 5)),
    row(aten.addmm.default, f32(5), f32(3, 4), f32(4, 5), beta=0.5, alpha=-2),
    row(aten.addmm.default, torch.full((5,), nan), f32(3, 4), f32(4, 5), beta=0),
    # Lookups and losses.
    *(
        row(aten.embedding.default, weight, INDICES, *padding)
        for weight in (f32(4, 5), bf16(4, 5))
        for padding in [(), (3,)]
    ),
    row(aten.embedding.default, f32(4, 5), torch.tensor(2, dtype=torch.int32)),
    *(
        row(aten.embedding_dense_backward.default, grad, INDICES, 4, padding, False)
        for grad in (f32(2, 3, 5), bf16(2, 3, 5))
        for padding in (-1, 3)
    ),
    *(
        row(aten.nll_loss_forward.default, PROBABLE.to(dtype), LABELS, weight, reduction, ignored)
        for dtype in (torch.float32, torch.bfloat16)
        for weight in (None, CLASS_WEIGHTS.to(dtype))
        for reduction in (0, 1, 2)
        for ignored in (-100,)
    ),
    *(row(aten.nll_loss_forward.default, PROBABLE, LABELS.clamp(min=0), None, reduction, 6) for reduction in (0, 1, 2)),
    *(row(aten.nll_loss_forward.default, PROBABLE, IGNORED, None, reduction, -100) for reduction in (0, 1, 2)),
    *(row(aten.nll_loss_forward.default, PROBABLE[0], torch.tensor(t), None, r, 2) for r in (1, 2) for t in (2, 3)),
    *(
        row(aten.nll_loss_backward.default, grad, PROBABLE.to(dtype), LABELS, weight, reduction, -100, total)
        for dtype in (torch.float32, torch.bfloat16)
        for weight, total in [
            (None, torch.tensor(3.0).to(dtype)),
            (CLASS_WEIGHTS.to(dtype), torch.tensor(0.75).to(dtype)),
        ]
        for reduction, grad in [(0, f32(5).to(dtype)), (1, f32().to(dtype)), (2, f32().to(dtype))]
    ),
    row(aten.nll_loss_backward.default, f32(), PROBABLE, IGNORED, None, 1, -100, torch.tensor(0.0)),
    *(
        row(aten.nll_loss_backward.default, f32(), PROBABLE[0], torch.tensor(3), None, r, -100, torch.tensor(1.0))
        for r in (0, 2)
    ),
    # Indexing, sorting, sums so far.
    *(row(aten.index.Tensor, f32(4, 5), places) for places in ([INDICES], [None, INDICES], [INDICES, INDICES])),
    row(aten.index.Tensor, i64(4), [torch.tensor([-1, 0, 3])]),
    row(aten.index.Tensor, bf16(3, 4, 2), [None, torch.tensor([1, 1, 0]), None]),
    *(
        row(aten.index_put.default, x, [torch.tensor([2, 0, 2])], values, True)
        for x, values in [(f32(4, 5), f32(3, 5)), (f32(4), f32()), (i64(4, 2), i64(3, 1))]
    ),
    row(aten.index_put.default, f32(4, 5), [torch.tensor([2, 0])], f32(5)),
    row(aten.index_put.default, f32(4, 5), [None, torch.tensor([2, -1])], f32(4, 2)),
    *(row(aten.topk.default, DISTINCT, 3, *options) for options in [(), (0,), (-1, False), (1, True, True)]),
    row(aten.topk.default, DISTINCT[0].bfloat16(), 2),
    *(row(aten.sort.default, x, *options) for x in (DISTINCT, DISTINCT[0]) for options in [(), (0,), (-1, True)]),
    *(
        row(aten.sort.stable, i64(5, 9), stable=True, dim=dim, descending=descending)
        for dim in (0, -1)
        for descending in (False, True)
    ),
    *(row(aten.cumsum.default, x, dim) for x in (f32(4, 5), bf16(4, 5), i64(4, 5), flags(4, 5)) for dim in (0, -1)),
    row(aten.cumsum.default, f32(), 0),
    row(aten.cumsum.default, i64(3), 0, dtype=torch.bfloat16),
    *(
        row(aten.div.Tensor_mode, x, y, rounding_mode=mode)
        for mode in ("floor", "trunc", None)
        for x, y in [
            (i64(9), torch.tensor([1, -1, 2, -2, 3, -3, 4, -4, 5])),
            (i64(9, low=-9, high=9), torch.tensor(2)),
            (f32(9) * 5, f32(9)),
            (i64(9), torch.tensor(2.5)),
        ]
    ),
    *(row(aten.div.Scalar_mode, i64(9, low=-9, high=9), 3, rounding_mode=mode) for mode in ("floor", "trunc")),
    # Scatters, gathers, and what else goes by index.
    *(
        row(aten.gather.default, x, dim, index)
        for x, dim, index in [
            (f32(3, 4), 1, i64(2, 6, low=0, high=4)),
            (bf16(3, 4), -2, i64(5, 2, low=0, high=3)),
            (flags(4), 0, i64(2, low=0, high=4)),
            (f32(), 0, torch.tensor(0)),
            (f32(3), 0, torch.zeros(0, dtype=torch.int64)),
        ]
    ),
    *(row(aten.index_select.default, x, 0, torch.tensor([2, 0, 2])) for x in (f32(3, 4), i64(3), bf16(3, 2))),
    row(aten.index_select.default, f32(3, 4), -1, torch.tensor(3)),
    row(aten.index_select.default, f32(), 0, torch.tensor([0])),
    row(aten.take.default, f32(3, 4), i64(2, 5, low=-12, high=12)),
    *(row(aten.put.default, f32(3, 4), torch.tensor([[1, -1]]), f32(2), *more) for more in [(), (True,)]),
    row(aten.scatter.src, f32(3, 4), 0, torch.tensor([[2, 0], [0, 1]]), f32(3, 4)),
    row(aten.scatter.value, i64(3, 4), -1, torch.tensor([[2, 0]]), 7),
    row(aten.scatter.value, f32(), 0, torch.tensor(0), 7),
    *(
        row(aten.scatter.reduce, x, 0, PLACES, x + 1, reduce=reduce)
        for x in (f32(3, 4), i64(3, 4))
        for reduce in ("add", "multiply")
    ),
    *(row(aten.scatter.value_reduce, f32(3, 4), 0, PLACES, 2.0, reduce=reduce) for reduce in ("add", "multiply")),
    *(row(aten.scatter_add.default, x, 0, PLACES, x) for x in (f32(3, 4), bf16(3, 4), i64(3, 4), flags(3, 4))),
    *(
        row(aten.scatter_reduce.two, x, 0, PLACES, x + 1, reduce, include_self=include_self)
        for x in (f32(3, 4), bf16(3, 4), i64(3, 4))
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for include_self in (True, False)
    ),
    *(
        row(aten.index_reduce.default, x, -1, ENDS, x[:, :3] + 1, reduce, include_self=include_self)
        for x in (f32(3, 4), i64(3, 4))
        for reduce in ("prod", "mean", "amax", "amin")
        for include_self in (True, False)
    ),
    *(row(aten.index_add.default, x, 1, ENDS, x[:, :3]) for x in (f32(3, 4), i64(3, 4), flags(3, 4))),
    row(aten.index_add.default, f32(3, 4), 1, ENDS, f32(3, 3), alpha=-2),
    row(aten.index_add.default, f32(), 0, torch.tensor(0), f32()),
    row(aten.index_copy.default, f32(3, 4), -1, torch.tensor([3, 1]), f32(3, 2)),
    row(aten.index_fill.int_Scalar, f32(3, 4), 0, torch.tensor([-1, 0]), 2),
    row(aten.index_fill.int_Tensor, i64(3, 4), 1, torch.tensor([2]), torch.tensor(5)),
    *(
        row(aten.index_put.default, f32(3, 4), where, values, accumulate)
        for where, values in [
            ([MASK], f32()),
            ([MASK], f32(1)),
            ([MASK], f32(5)),
            ([MASK[:, 0]], f32(2, 4)),
            ([MASK[:, 0]], f32(4)),
            ([MASK[:, 0]], f32(1, 4)),
            ([None, MASK[0]], f32(3, 2)),
            ([MASK[:, 0], torch.tensor([1, 3])], f32(2)),
            ([MASK[:, 0], torch.tensor([1, 3])], f32()),
        ]
        for accumulate in (False, True)
    ),
    row(aten._unsafe_index.Tensor, f32(4, 5), [None, INDICES]),
    row(aten._unsafe_index_put.default, f32(4, 5), [torch.tensor([2, 0, 2])], f32(3, 5), True),
    row(aten._unsafe_masked_index.default, f32(4), INDICES > 0, [INDICES], 2.0),
    row(aten._unsafe_masked_index_put_accumulate.default, f32(4), INDICES > 0, [INDICES], f32(2, 3)),
    *(row(aten.masked_scatter.default, x, MASK, x.flatten()) for x in (f32(3, 4), bf16(3, 4), i64(3, 4))),
    row(aten.masked_scatter_backward.default, f32(3, 4), MASK, [2, 4]),
    *(row(aten.nonzero_static.default, MASK, size=size) for size in (2, 5, 8)),
    row(aten.nonzero_static.default, MASK, size=7, fill_value=3),
    row(aten.nonzero_static.default, torch.tensor(True), size=1),
    row(aten.repeat_interleave.Tensor, torch.tensor([2, 0, 3]), output_size=5),
    # What is cumulative.
    *(
        row(_op(name), x, dim)
        for name in ("cummax", "cummin", "cumprod")
        for x in (f32(4, 5), bf16(4, 5), i64(4, 5))
        for dim in (0, -1)
    ),
    *(row(_op(name), x, 0) for name in ("cummax", "cummin") for x in (SPECIAL, SPECIAL.flip(0), flags(6), f32())),
    *(row(aten.cumprod.default, x, 0) for x in (f32(), flags(4))),
    *(row(aten.logcumsumexp.default, x, dim) for x in (f32(4, 5), bf16(4, 5)) for dim in (0, -1)),
    row(aten.logcumsumexp.default, f32(), 0),
    # What sorts, and what looks up in what is sorted.
    row(aten.topk.default, torch.tensor(2.0), 1),
    row(aten.sort.default, torch.tensor(2.0)),
    *(row(aten.kthvalue.default, DISTINCT, k, *options) for k in (1, 3) for options in [(), (0,), (-1, True)]),
    *(
        row(_op(name, "dim"), x, *options)
        for name in ("median", "nanmedian")
        for x in (DISTINCT, WITH_NAN)
        for options in [(0,), (-1, True)]
    ),
    *(row(_op(name), x) for name in ("median", "nanmedian") for x in (DISTINCT, WITH_NAN, i64(6), f32(), f32(0))),
    *(row(_op(name, "dim"), f32(), 0) for name in ("median", "nanmedian")),
    *(row(aten.mode.default, i64(5, 9), *options) for options in [(), (0,), (-1, True)]),
    row(aten.mode.default, f32()),
    *(
        row(aten.searchsorted.Tensor, EDGES.expand(rows), x, right=right)
        for rows, x in [((4,), f32(3, 2)), ((3, 4), f32(3, 2))]
        for right in (False, True)
    ),
    row(aten.searchsorted.Tensor, EDGES, EDGES, side="right", out_int32=True),
    row(aten.searchsorted.Tensor, EDGES.flip(0), f32(5), sorter=torch.arange(4).flip(0)),
    row(aten.searchsorted.Scalar, EDGES, 0.5),
    *(row(aten.searchsorted.Tensor, f32(*rows), f32(*rows[:-1], n)) for rows in [(0,), (2, 0)] for n in (0, 3)),
    row(aten.searchsorted.Tensor, f32(2, 3), f32(2, 0)),
    *(row(aten.bucketize.Tensor, x, EDGES, right=right) for x in (EDGES, f32(2, 3)) for right in (False, True)),
    row(aten.bucketize.Scalar, 0.5, EDGES, out_int32=True),
    *(row(aten.histc.default, f32(50), *options) for options in [(), (7,), (5, -1, 1)]),
    row(aten.histc.default, torch.ones(4), 4),
    *(
        row(aten.segment_reduce.default, f32(6, 2), reduce, lengths=torch.tensor([2, 0, 4]), initial=initial)
        for reduce in ("sum", "mean", "prod", "max", "min")
        for initial in (None, 0.5)
    ),
    row(aten.segment_reduce.default, f32(2, 4), "mean", offsets=torch.tensor([[0, 1, 4], [0, 3, 4]]), axis=1),
    *(
        row(aten._segment_reduce_backward.default, f32(3).abs(), x, y, reduce, lengths=torch.tensor([2, 0, 4]))
        for reduce in ("sum", "mean", "prod", "max", "min")
        for y in (f32(6), i64(6).float())
        for x in [aten.segment_reduce.default(y, reduce, lengths=torch.tensor([2, 0, 4]))]
    ),
    *(row(aten.histogram.bin_ct, f32(30), 5, **more) for more in [{}, {"range": [-1.0, 0.5]}, {"density": True}]),
    *(row(aten.histogram.bins_tensor, x, EDGES) for x in (f32(30), EDGES)),
    row(aten.histogram.bins_tensor, f32(30), EDGES, weight=f32(30), density=True),
    # Reductions of an index, and others.
    *(
        row(_op(name), x, *options)
        for name in ("argmax", "argmin")
        for x in (DISTINCT, WITH_NAN, i64(3, 9))
        for options in [(), (0,), (-1, True)]
    ),
    *(row(_op(name), f32()) for name in ("argmax", "argmin", "max", "min")),
    *(
        row(_op(name, "dim"), x, *options)
        for name in ("max", "min")
        for x in (DISTINCT, WITH_NAN, bf16(3, 4), flags(3, 4))
        for options in [(0,), (-1, True)]
    ),
    *(row(_op(name, "dim"), f32(), 0) for name in ("max", "min")),
    *(row(_op(name), x) for name in ("max", "min") for x in (WITH_NAN, i64(3, 4), flags(3))),
    *(row(aten.all.default, x) for x in (flags(4), f32(2), i64(3).to(torch.uint8), f32(0))),
    *(row(aten.all.dim, x, 0, keepdim) for x in (flags(3, 4), f32()) for keepdim in (False, True)),
    *(row(aten.all.dims, flags(3, 4), dims) for dims in [[0], [0, -1], []]),
    *(row(aten.prod.default, x) for x in (f32(3, 4), bf16(3), i64(3), flags(2), f32(0))),
    *(row(aten.prod.dim_int, x, 0, keepdim) for x in (f32(3, 4), i64(3), f32()) for keepdim in (False, True)),
    *(
        row(_op(name, "correction"), x, dims, correction=correction, keepdim=keepdim)
        for name in ("var", "var_mean")
        for x in (f32(3, 4), bf16(3, 4))
        for dims in (None, [0], [-1, 0])
        for correction, keepdim in [(None, False), (0, True), (2, False)]
    ),
    *(row(aten.dist.default, x, x + 1 + f32(4), p) for x in (f32(3, 4), bf16(3, 4)) for p in (0, 1, 2, 2.5, inf, -inf)),
    # What rearranges, by strides too.
    *(row(aten.flip.default, x, dims) for x, dims in [(f32(3, 4), [0, -1]), (f32(3, 4), []), (f32(), [0])]),
    *(row(aten.diagonal.default, f32(3, 4, 5), *options) for options in [(), (1,), (-1, 2, 0), (4,)]),
    *(
        row(aten.diagonal_scatter.default, f32(3, 4), source, offset)
        for source, offset in [(f32(3), 0), (f32(3), 1), (f32(2), -1)]
    ),
    row(aten.diagonal_scatter.default, f32(3, 4, 5), f32(4, 3), 1, 0, -1),
    *(row(aten.unfold.default, x, dim, 2, step) for x in (f32(5, 4), bf16(6, 3)) for dim in (0, -1) for step in (1, 3)),
    row(aten.unfold.default, f32(), 0, 1, 1),
    *(
        row(aten.view.dtype, x, dtype)
        for x, dtype in [
            (f32(3, 4), torch.int32),
            (f32(3, 4), torch.bfloat16),
            (bf16(3, 4), torch.float32),
            (f32(), torch.int32),
            (flags(4), torch.uint8),
            (f32(4), torch.float32),
        ]
    ),
    *(
        row(aten.as_strided.default, x, *layout)
        for x in (f32(4, 4), f32(4, 4).t(), f32(16).view(2, 2, 4).permute(2, 0, 1))
        for layout in [
            ((2, 3), (4, 1)),
            ((4, 4), (1, 4), 0),
            ((2, 2), (3, 2), 5),
            ((3, 3), (1, 1)),
            ((2,), (0,), 3),
            ((0,), (1,)),
        ]
    ),
    row(aten.as_strided.default, f32(3, 1).expand(3, 4), (2, 2), (1, 0)),
    *(
        row(aten.resize.default, x, [2, 3], reference=lambda x, size: x.flatten()[:6].view(size))
        for x in (f32(2, 3), f32(4, 4))
    ),
    *(row(aten.as_strided_scatter.default, x, f32(2, 3), (2, 3), (5, 1), 1) for x in (f32(4, 4), f32(4, 4).t())),
    # Creation.
    *(row(aten.full.default, [2, 3], value, dtype=dtype) for value, dtype in [(1.5, torch.bfloat16), (2, torch.int64)]),
    row(aten.full.default, [], True, dtype=torch.bool),
    row(aten.full.default, [2], -inf),
    row(aten.full_like.default, bf16(2, 3), 0.1),
    row(aten.full_like.default, bf16(2, 3), 3, dtype=torch.int32),
    row(aten.zeros.default, [2, 0], dtype=torch.bool),
    row(aten.zeros_like.default, i64(2)),
    row(aten.zeros_like.default, i64(2), dtype=torch.bfloat16),
    row(aten.new_zeros.default, bf16(2), [3, 4]),
    Sample(aten.empty.memory_format, ([2, 3],), {"dtype": torch.bfloat16}, aten.empty.memory_format, values=False),
    Sample(aten.empty_permuted.default, ([2, 3], [0, 1]), {}, aten.empty_permuted.default, values=False),
    Sample(aten.empty_like.default, (i64(2),), {}, aten.empty_like.default, values=False),
    Sample(aten.new_empty_strided.default, (i64(2), [2, 3], [3, 1]), {}, aten.new_empty_strided.default, values=False),
    Sample(aten.empty_strided.default, ([2, 3], [3, 1]), {}, aten.empty_strided.default, values=False),
    *(
        row(aten.scalar_tensor.default, value, dtype=dtype)
        for value, dtype in [(2.5, torch.bfloat16), (3, torch.int64)]
    ),
    row(aten.scalar_tensor.default, -inf),
    *(row(aten.arange.start_step, *bounds) for bounds in [(0, 5), (5, 0, -2), (0, 1, 0.1), (2, 2)]),
    row(aten.arange.start_step, 1, 6, 2, dtype=torch.bfloat16),
    *(
        row(op, i64(3, 5), i64(*batch, 3, 4), i64(*batch, 4, 5), beta=1.5, alpha=2.5)
        for op, batch in [(aten.addmm.default, ()), (aten.addbmm.default, (2,))]
    ),
    # Complex numbers. (Elementwise arithmetic with them: tests/operators.)
    *(row(op, c64(2, 3)) for op in (aten._conj_physical.default, aten.conj_physical.default, aten.angle.default)),
    *(
        row(op, c64(2, 3))
        for op in (aten._conj.default, aten.real.default, aten.imag.default, aten.view_as_real.default)
    ),
    row(aten._neg_view.default, f32(2, 3)),
    row(aten.view_as_complex.default, f32(2, 3, 2)),
    *(row(aten.angle.default, x) for x in (f32(4), bf16(4), SPECIAL, i64(5), flags(4))),
    row(aten.complex.default, f32(2, 3), f32(3)),
    row(aten.polar.default, f32(2, 3), f32(3)),
    *(row(_op(name), c64(3)) for name in ("abs", "exp", "neg", "reciprocal", "sqrt", "tanh", "logical_not")),
    *(
        row(_op(name, "Tensor"), x, y)
        for name in ("add", "sub", "mul", "div", "eq", "ne")
        for x, y in [(c64(3), c64(3)), (c64(3), f32(3)), (i64(3), c64()), (c64(3), 2.5), (f32(), c64(3))]
        if isinstance(y, Tensor) or name in ("add", "sub", "mul", "div")
    ),
    *(row(_op(name, "Tensor"), f32(3), 1 + 2j) for name in ("add", "sub", "mul", "div")),
    *(row(aten._to_copy.default, x, dtype=torch.complex64) for x in (f32(3), i64(3), flags(3))),
    row(aten._to_copy.default, c64(3), dtype=torch.bool),
    *(row(aten.mm.default, c64(2, 3), x) for x in (c64(3, 4), c64(4, 3).mH)),
    row(aten.sum.dim_IntList, c64(2, 3), [1]),
    # Fourier transforms.
    *(
        row(aten._fft_r2c.default, f32(2, 5, 6), dims, scaling, onesided)
        for dims in ([2], [0, 1], [2, 0, 1])
        for scaling in (0, 1, 2)
        for onesided in (True, False)
    ),
    *(
        row(aten._fft_c2c.default, c64(2, 5, 6), dims, scaling, forward)
        for dims in ([1], [2, 0], [0, 1, 2], [])
        for scaling in (0, 1, 2)
        for forward in (True, False)
    ),
    row(aten._fft_c2c.default, c64(2, 3, 4, 2), [0, 1, 2, 3], 0, True),
    *(
        row(aten._fft_c2r.default, torch.fft.rfftn(f32(2, 5, size), dim=dims), dims, scaling, size)
        for dims in ([2], [0, 2], [0, 1, 2])
        for scaling in (0, 1, 2)
        for size in (6, 7)
    ),
    # Factorizations. Of those that are not unique, what is; tests/operators put the rest together again.
    *(row(aten._linalg_svd.default, x, False, False) for x in (f32(3, 4), f32(2, 4, 3), c64(3, 3), f32(0, 3))),
    *(
        Sample(aten._linalg_svd.default, (make(2, 3, 4), full), {}, aten._linalg_svd.default, values=False)
        for make in (f32, c64)
        for full in (False, True)
    ),
    *(row(aten._linalg_eigh.default, x, uplo, False) for x in (f32(2, 3, 3), c64(3, 3)) for uplo in "LU"),
    Sample(aten._linalg_eigh.default, (f32(2, 3, 3),), {}, aten._linalg_eigh.default, values=False),
    Sample(aten._linalg_eigh.default, (c64(3, 3), "U"), {}, aten._linalg_eigh.default, values=False),
    *(
        Sample(aten.linalg_eig.default, (x,), {}, aten.linalg_eig.default, values=False)
        for x in (f32(2, 3, 3), c64(3, 3))
    ),
    row(aten._linalg_eigvals.default, torch.tensor([[1.0, 2], [-3, 0.5]])),
    *(
        row(aten.linalg_qr.default, f32(2, *shape), mode)
        for shape in [(3, 4), (4, 3)]
        for mode in ("reduced", "complete", "r")
    ),
    row(aten.linalg_qr.default, c64(4, 3)),
    *(row(aten.geqrf.default, f32(2, *shape)) for shape in [(3, 4), (4, 3)]),
    *(row(aten.linalg_householder_product.default, f32(2, *shape) / 4, f32(2, 2)) for shape in [(4, 2), (4, 3)]),
    *(
        row(aten.ormqr.default, f32(4, 3) / 4, f32(3), other, left, transposed)
        for other, left in [(f32(4, 2), True), (f32(2, 4), False)]
        for transposed in (False, True)
    ),
    *(
        row(op, definite(make, 2, 3, 3), **options)
        for op in (aten.cholesky.default, aten.linalg_cholesky_ex.default)
        for make in (f32, c64)
        for options in ({}, {"upper": True})
    ),
    *(
        row(op, x)
        for op in (aten.linalg_lu_factor_ex.default, aten.linalg_lu.default)
        for x in (f32(2, 3, 4), f32(4, 3), c64(3, 3), torch.ones(2, 3, 3), f32(2, 0, 3))
    ),
    *(
        row(aten.lu_unpack.default, *torch.linalg.lu_factor(x), *options)
        for x in (f32(2, 3, 4), f32(4, 3), c64(3, 3))
        for options in [(), (False,), (True, False)]
    ),
    # Linear systems.
    *(
        row(aten.linalg_solve_triangular.default, x + 3 * torch.eye(3), b, upper=upper, left=left, unitriangular=unit)
        for x, b, left in [
            (f32(2, 3, 3), f32(3, 4), True),
            (f32(3, 3), f32(2, 4, 3), False),
            (c64(3, 3), c64(3, 1), True),
        ]
        for upper in (False, True)
        for unit in (False, True)
    ),
    *(
        row(aten.triangular_solve.default, f32(3, 2), f32(2, 3, 3) + 3 * torch.eye(3), *options)
        for options in [(), (False,), (True, True), (False, True, True)]
    ),
    *(
        row(aten.linalg_lu_solve.default, *torch.linalg.lu_factor(x), b, left=left, adjoint=adjoint)
        for x, b, left in [
            (f32(2, 3, 3), f32(3, 4), True),
            (f32(3, 3), f32(2, 4, 3), False),
            (c64(3, 3), c64(4, 3), False),
        ]
        for adjoint in (False, True)
    ),
    *(
        row(op, *before, torch.linalg.cholesky(definite(make, 2, 3, 3)), *after)
        for make in (f32, c64)
        for op, before in [(aten.cholesky_solve.default, (make(3, 2),)), (aten.cholesky_inverse.default, ())]
        for after in [(), (False,)]
    ),
    row(aten.cholesky_inverse.default, torch.linalg.cholesky(definite(f32, 3, 3), upper=True), True),
    *(row(aten.linalg_matrix_exp.default, x) for x in (f32(2, 3, 3), c64(2, 2), f32(0, 3, 3))),
    # Distances.
    *(row(aten._cdist_forward.default, f32(2, 3, 5), f32(4, 5), p, None) for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, inf)),
    *(row(aten._cdist_forward.default, x, f32(4, 0), 2.0, None) for x in (f32(3, 0), f32(2, 3, 0))),
    *(
        row(aten._cdist_backward.default, f32(4, 4), SPREAD, SPREAD, p, torch.cdist(SPREAD, SPREAD, p))
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, inf)
    ),
    # The gamma function.
    *(
        row(op, x)
        for op in (aten.lgamma.default, aten.digamma.default)
        for x in (f32(20) * 4, bf16(4), i64(4, low=1), SPECIAL)
    ),
    *(row(op, f32(9).abs() * 3, f32(9).abs() * 3) for op in (aten.igamma.default, aten.igammac.default)),
    *(row(aten.polygamma.default, n, x) for n in range(4) for x in (f32(9).abs() + 0.1, i64(4, low=1))),
    *(
        row(aten.addbmm.default, x, f32(2, 3, 4), f32(2, 4, 5), **options)
        for x in (f32(3, 5), f32(5))
        for options in ({}, {"beta": 0.5, "alpha": -2})
    ),
    # Convolutions: strided, padded, dilated, grouped, transposed, of one to three dimensions.
    *(
        row(aten.convolution.default, x, weight, bias, *options)
        for x, weight, bias, options in [
            (f32(2, 4, 9), f32(6, 4, 3), f32(6), ([2], [1], [1], False, [0], 1)),
            (f32(2, 4, 9), f32(6, 2, 3), None, ([1], [2], [3], False, [0], 2)),
            (f32(2, 4, 7, 8), f32(4, 1, 3, 2), f32(4), ([2, 1], [1, 0], [1, 2], False, [0, 0], 4)),
            (bf16(2, 4, 7, 8), bf16(3, 4, 3, 3), bf16(3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
            (f32(1, 2, 4, 5, 6), f32(3, 2, 2, 2, 2), None, ([1, 2, 1], [0, 1, 0], [1, 1, 1], False, [0, 0, 0], 1)),
            (f32(2, 4, 5), f32(4, 3, 3), f32(3), ([3], [1], [2], True, [2], 1)),
            (f32(2, 4, 5, 6), f32(4, 3, 3, 2), f32(6), ([2, 1], [1, 0], [1, 2], True, [1, 0], 2)),
            (bf16(1, 2, 3, 4, 3), bf16(2, 2, 2, 2, 2), None, ([2, 2, 2], [0, 1, 0], [1, 1, 1], True, [0, 1, 0], 1)),
        ]
    ),
    *(
        row(aten.convolution_backward.default, grad, x, weight, [weight.shape[0]], *options, [True, True, True])
        for grad, x, weight, options in [
            (f32(2, 6, 5), f32(2, 4, 9), f32(6, 4, 3), ([2], [1], [1], False, [0], 1)),
            (f32(2, 4, 4, 6), f32(2, 4, 7, 8), f32(4, 1, 3, 2), ([2, 1], [1, 0], [1, 2], False, [0, 0], 4)),
        ]
    ),
    row(
        aten.convolution_backward.default,
        *(f32(2, 6, 10, 8), f32(2, 4, 5, 6), f32(4, 3, 3, 2), [6]),
        *([2, 1], [1, 0], [1, 2], True, [1, 0], 2, [True, True, True]),
    ),
    # Pooling.
    *(
        row(aten.avg_pool2d.default, x, *options)
        for x in (f32(2, 3, 7, 8), bf16(3, 7, 8))
        for options in [
            ([2, 3],),
            ([3], [2], [1]),
            ([3, 3], [2, 2], [1, 1], True, False),
            ([3, 3], [2, 2], [1, 1], True, True, 5),
        ]
    ),
    row(aten.avg_pool2d.default, i64(1, 5, 5, low=-9), [2, 2]),
    row(aten.avg_pool3d.default, f32(2, 4, 5, 6), [2, 3, 2], [2, 2, 2], [1, 1, 1], True, False),
    row(aten.avg_pool2d_backward.default, f32(2, 3, 4, 5), f32(2, 3, 7, 8), [3], [2], [1], True, False, None),
    row(aten.avg_pool3d_backward.default, f32(2, 2, 2, 3), f32(2, 4, 5, 6), [2], [2], [0], False, True, 3),
    *(
        row(aten.max_pool2d_with_indices.default, x, *options)
        for x in (f32(2, 3, 7, 8), bf16(3, 7, 8), i64(2, 7, 8), torch.full((1, 4, 5), -inf))
        for options in [([2, 3],), ([3], [2], [1]), ([3, 2], [2, 1], [1, 1], [2, 1], True)]
    ),
    row(aten.max_pool2d_with_indices.default, torch.where(flags(1, 7, 8), f32(1, 7, 8), nan), [3, 3], [2, 2], [1, 1]),
    row(aten.max_pool3d_with_indices.default, f32(2, 4, 5, 6), [2, 3, 2], [2, 2, 2], [1, 1, 1], [1, 1, 2], True),
    row(aten.max_pool2d_with_indices_backward.default, *_max_pooled(aten.max_pool2d_with_indices, f32(2, 3, 7, 8), 2)),
    row(aten.max_pool3d_with_indices_backward.default, *_max_pooled(aten.max_pool3d_with_indices, f32(2, 4, 5, 6), 3)),
    *(row(aten._adaptive_avg_pool2d.default, f32(2, 3, 7, 8), size) for size in ([1, 1], [7, 4], [3, 5], [9, 2])),
    row(aten._adaptive_avg_pool2d.default, bf16(3, 7, 8), [3, 5]),
    row(aten._adaptive_avg_pool3d.default, f32(2, 4, 5, 6), [3, 2, 4]),
    row(aten._adaptive_avg_pool2d_backward.default, f32(2, 3, 3, 5), f32(2, 3, 7, 8)),
    row(aten._adaptive_avg_pool3d_backward.default, f32(2, 3, 2, 4), f32(2, 4, 5, 6)),
    *(row(aten.adaptive_max_pool2d.default, x, [3, 5]) for x in (f32(2, 3, 7, 8), bf16(3, 6, 10))),
    row(aten.adaptive_max_pool3d.default, f32(2, 4, 5, 6), [3, 2, 4]),
    row(
        aten.adaptive_max_pool2d_backward.default,
        *(f32(2, 3, 5), (_pooled := f32(2, 7, 8)), aten.adaptive_max_pool2d(_pooled, [3, 5])[1]),
    ),
    row(
        aten.adaptive_max_pool3d_backward.default,
        *(f32(2, 3, 2, 4), (_pooled := f32(2, 4, 5, 6)), aten.adaptive_max_pool3d(_pooled, [3, 2, 4])[1]),
    ),
    row(aten.fractional_max_pool2d.default, f32(2, 3, 7, 8), [2, 3], [3, 4], f32(2, 3, 2).sigmoid()),
    row(aten.fractional_max_pool3d.default, f32(1, 2, 5, 6, 7), [2, 3, 2], [3, 1, 4], f32(1, 2, 3).sigmoid()),
    row(aten.fractional_max_pool2d_backward.default, f32(2, 3, 4), f32(2, 7, 8), [2, 2], [3, 4], i64(2, 3, 4, low=0)),
    row(
        aten.fractional_max_pool3d_backward.default,
        *(f32(2, 3, 2, 4), f32(2, 5, 6, 7), [2, 2, 2], [3, 2, 4], i64(2, 3, 2, 4, low=0)),
    ),
    # Interpolation, and places that are computed.
    *(
        row(_op(f"{name}{len(size)}d"), x, size, *scales)
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for x, size, scales in [
            (f32(1, 2, 5), [8], [None]),
            (bf16(1, 2, 5), [3], [0.7]),
            (f32(1, 2, 4, 5), [8, 3], [None, None]),
            (i64(1, 1, 4, 5).to(torch.uint8), [6, 10], [1.6, 2.1]),
            (f32(1, 1, 2, 3, 4), [3, 5, 2], [None, None, None]),
        ]
    ),
    *(
        row(_op(name), x, size, corners, *[scale] * len(size))
        for name, x, size in [
            ("upsample_linear1d", f32(1, 2, 5), [8]),
            ("upsample_bilinear2d", f32(1, 2, 4, 5), [7, 3]),
            ("upsample_bilinear2d", bf16(1, 2, 4, 5), [7, 3]),
            ("upsample_trilinear3d", f32(1, 1, 2, 3, 4), [3, 5, 2]),
            ("upsample_bicubic2d", f32(1, 2, 4, 5), [7, 3]),
            ("_upsample_bilinear2d_aa", f32(1, 2, 9, 8), [4, 11]),
            ("_upsample_bicubic2d_aa", f32(1, 2, 9, 8), [4, 11]),
        ]
        for corners in (False, True)
        for scale in (None, 1.3)
    ),
    *(
        row(_op(f"{name}_backward"), f32(1, 2, *size), size, [1, 2, *shape], *corners, *[None] * len(size))
        for name, shape, size, corners in [
            ("upsample_nearest1d", [5], [8], []),
            ("upsample_nearest2d", [4, 5], [8, 3], []),
            ("upsample_nearest3d", [2, 3, 4], [3, 5, 2], []),
            ("_upsample_nearest_exact1d", [5], [8], []),
            ("_upsample_nearest_exact2d", [4, 5], [8, 3], []),
            ("_upsample_nearest_exact3d", [2, 3, 4], [3, 5, 2], []),
            ("upsample_linear1d", [5], [8], [False]),
            ("upsample_bilinear2d", [4, 5], [7, 3], [True]),
            ("upsample_trilinear3d", [2, 3, 4], [3, 5, 2], [False]),
            ("upsample_bicubic2d", [4, 5], [7, 3], [False]),
            ("_upsample_bilinear2d_aa", [9, 8], [4, 11], [False]),
            ("_upsample_bicubic2d_aa", [9, 8], [4, 11], [True]),
        ]
    ),
    row(aten.replication_pad1d_backward.default, f32(2, 3, 8), f32(2, 3, 5), [1, 2]),
    row(aten.replication_pad2d_backward.default, f32(2, 3, 6, 4), f32(2, 3, 5, 5), [-2, 1, 0, 1]),
    row(aten.replication_pad3d_backward.default, f32(2, 5, 4, 6), f32(2, 3, 3, 3), [1, 2, 0, 1, 1, 1]),
    *(
        row(op, x, 1.5 * grid, interpolation, padding, corners)
        for op, x, grid, modes in [
            (aten.grid_sampler_2d.default, f32(2, 3, 5, 6), f32(2, 4, 3, 2), (0, 1, 2)),
            (aten.grid_sampler_3d.default, f32(1, 2, 3, 4, 5), f32(1, 2, 3, 2, 3), (0, 1)),
        ]
        for interpolation in modes
        for padding in (0, 1, 2)
        for corners in (False, True)
    ),
    row(
        aten.grid_sampler_2d.default, f32(1, 1, 3, 3), torch.tensor([[[[nan, 0], [inf, 0.5], [0, -inf]]]]), 0, 0, False
    ),
    *(
        row(aten.grid_sampler_2d_backward.default, f32(2, 3, 4, 3), f32(2, 3, 5, 6), 1.5 * f32(2, 4, 3, 2), *options)
        for options in [(0, 0, False, [True, True]), (0, 2, True, [True, True]), (2, 1, False, [True, True])]
    ),
    row(
        aten.grid_sampler_3d_backward.default,
        *(f32(1, 2, 2, 3, 2), f32(1, 2, 3, 4, 5), f32(1, 2, 3, 2, 3), 0, 1, False, [True, True]),
    ),
    # Bags of embeddings: the third is empty, and the table's row 3 may be padding.
    *(
        Sample(op, (weight, *BAGS, False, mode, False, None, False, padding), {}, op)
        for op in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
        # Of a sum in bf16, PyTorch's fake tensors have shapes that its results have not.
        for weight, modes in [(f32(5, 4), (0, 1, 2)), (bf16(5, 4), (1, 2))]
        for mode in modes
        for padding in (-1, 3)
    ),
    row(aten._embedding_bag.default, f32(5, 4), *BAGS, False, 0, False, f32(7), False, 3),
    *(
        row(
            aten._embedding_bag_backward.default,
            *(f32(4, 4), *BAGS, BAG_OF, BAG_SIZES, BAG_SIZES, 5, by_frequency, mode, False, scales, -1),
        )
        for mode, by_frequency, scales in [(0, False, None), (0, True, None), (1, False, None), (0, False, f32(7))]
    ),
    row(
        aten._embedding_bag_backward.default,
        *(f32(4, 4), *BAGS, BAG_OF, BAG_SIZES, i64(4, 4, low=0), 5, False, 2, False, None, -1),
    ),
    row(aten._embedding_bag_per_sample_weights_backward.default, f32(4, 4), f32(5, 4), *BAGS, BAG_OF, 0, 3),
    row(aten.embedding_dense_backward.default, f32(2, 3, 5), INDICES, 4, 1, True),
    # Attention, margins, activations, norms.
    *(
        row(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        for q, k, v, causal, mask, scale in [
            (f32(2, 3, 4, 5), f32(2, 3, 6, 5), f32(2, 3, 6, 5), False, None, None),
            (bf16(2, 3, 4, 5), bf16(2, 3, 4, 5), bf16(2, 3, 4, 5), True, None, 0.3),
            (f32(2, 3, 4, 5), f32(2, 3, 6, 5), f32(2, 3, 6, 5), False, f32(4, 6), None),
        ]
    ),
    row(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, *_attended(f32(2, 3, 4, 5)), 0.0, True),
    *(
        row(aten.multi_margin_loss.default, f32(3, 4), torch.tensor([1, 0, 3]), p, 0.7, weight, reduction)
        for p, weight, reduction in [(1, None, 1), (2, f32(4), 0), (1, f32(4), 2)]
    ),
    row(aten.multi_margin_loss.default, f32(4), torch.tensor(2)),
    row(aten.multi_margin_loss_backward.default, f32(), f32(3, 4), torch.tensor([1, 0, 3]), 2, 0.7, f32(4), 1),
    *(
        row(aten.soft_margin_loss_backward.default, grad, torch.tensor([15.0, -2, 0.5]), torch.tensor([1.0, 1, -1]), r)
        for grad, r in [(f32(3), 0), (f32(), 1), (f32(), 2)]
    ),
    row(
        aten.multilabel_margin_loss_backward.default,
        *(f32(), (_rows := f32(2, 4)), MANY_LABELS, 1, aten.multilabel_margin_loss_forward(_rows, MANY_LABELS, 1)[1]),
    ),
    *(
        row(op, grad, x, 0.5)
        for op in (aten.hardshrink_backward.default, aten.softshrink_backward.default)
        for grad, x in [(f32(8), f32(8)), (bf16(8), bf16(8)), (f32(7), SPECIAL)]
    ),
    row(aten.rrelu_with_noise_functional.default, f32(5), f32(5), 0.1, 0.3, False),
    *(
        row(aten.native_group_norm.default, x, weight, bias, 2, 6, 5, groups, 1e-5)
        for x, weight, bias, groups in [
            (f32(2, 6, 5), f32(6), f32(6), 3),
            (f32(2, 6, 5), None, None, 2),
            (bf16(2, 6, 5), bf16(6), None, 6),
        ]
    ),
    row(aten._trilinear.default, f32(2, 3), f32(4, 3, 5), f32(2, 5), [1, 3], [0], [1, 2], [2, 3]),
    # Repeats, rows that are too long, distances of pairs, histograms of points.
    *(row(aten.repeat.default, f32(2, 3), repeats) for repeats in ([2, 1], [3, 1, 2], [0, 2])),
    *(row(aten.nonzero_static.default, x, size=3, fill_value=7) for x in (torch.ones(0, 2), torch.tensor(1.0))),
    *(
        row(aten.embedding_renorm.default, weight, torch.tensor([[1, 3], [3, 0]]), 1.0, p)
        for weight, p in [(2 * f32(5, 4), 2.0), (0.2 * f32(5, 4), 1.0), (f32(5, 4), inf)]
    ),
    *(row(aten._pdist_forward.default, x, p) for x in (f32(4, 3), f32(1, 3)) for p in (0.0, 1.0, 2.0, 3.0, inf)),
    *(
        row(aten._pdist_backward.default, f32(6), x, p, aten._pdist_forward(x, p))
        for x in [f32(4, 3)]
        for p in (0.0, 1.0, 2.0, 3.0, inf)
    ),
    *(
        row(op, points, [3, 2], range=bounds, weight=weight, density=density)
        for op in (aten._histogramdd_bin_edges.default, aten._histogramdd_from_bin_cts.default)
        for points, bounds, weight, density in [
            (f32(9, 2), None, None, False),
            (f32(3, 3, 2), [-1.0, 1.0, 0.0, 2.0], f32(3, 3).abs(), True),
        ]
    ),
    row(aten._histogramdd_from_bin_tensors.default, f32(9, 2), [torch.arange(-2.0, 3), torch.tensor([-1.0, 0, 3])]),
]
