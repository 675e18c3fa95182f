"""Operators on each element alone."""

from __future__ import annotations

import torch
from xla.samples.table import SPECIAL, aten, bf16, f32, flags, i64, inf, nan, operator_named, row

_FLOATING = ["cos", "erf", "erfinv", "exp", "expm1", "log", "log1p", "reciprocal", "rsqrt", "sigmoid", "sin", "sqrt"]

_ANY = [*_FLOATING, "tanh", "isinf", "isnan", "logical_not"]

_SIGNED = ["abs", "neg", "relu", "sign"]

_COMPARE = ["eq", "ge", "gt", "le", "lt", "ne"]

_BITWISE = ["bitwise_and", "bitwise_or", "bitwise_xor"]

_BOOLEAN = [*_COMPARE, *_BITWISE, "mul"]

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

ROWS = [
    # Element-wise, special and random functions of PyTorch's operator database.
    *(
        row(operator_named(name), x)
        for name in [*_TRIGONOMETRIC, *_SPECIAL]
        for x in (f32(3, 4), bf16(5), SPECIAL, i64(6), f32())
    ),
    *(
        row(operator_named(f"special_{name}"), x)
        for name in _BESSEL
        for x in (_ARGUMENTS[:-2], SPECIAL[[0, 2]], i64(6), f32())
    ),
    *(row(operator_named(f"special_{name}"), f32(5, 1), _DEGREES) for name in _POLYNOMIAL),
    *(row(operator_named(f"special_{name}", "x_scalar"), 0.3, _DEGREES) for name in _POLYNOMIAL),
    *(row(operator_named(f"special_{name}", "n_scalar"), f32(5), 3) for name in _POLYNOMIAL),
    row(aten.special_zeta.default, torch.tensor([[2.0], [3.5], [1.0], [0.5]]), torch.tensor([1.0, 0.3, -0.5, -2.0])),
    row(aten.special_zeta.self_scalar, 2.0, f32(5).abs()),
    row(aten.special_zeta.other_scalar, f32(5).abs() + 1.5, 2.0),
    *(
        row(operator_named(name), x)
        for name in ("ceil", "floor", "trunc", "round")
        for x in (_DECIMAL, bf16(5), i64(6))
    ),
    *(row(aten.round.decimals, x, decimals=d) for x in (_DECIMAL, bf16(5)) for d in (0, 2, -1)),
    *(row(operator_named(name), i64(6), i64(4, 1)) for name in ("gcd", "lcm")),
    *(
        row(operator_named(name, overload), x, y)
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
        row(getattr(getattr(aten, f"__{side}shift__"), overload), i64(3, low=0), y)
        for side in "lr"
        for overload, y in [("Tensor", torch.tensor([0, 1, 3])), ("Scalar", 2)]
    ),
    *(
        row(operator_named(f"bitwise_{side}_shift", overload), x, y)
        for side in ("left", "right")
        for overload, x, y in (
            ("Tensor", i64(6), i64(6, low=0)),
            ("Tensor_Scalar", i64(6), 2),
            ("Scalar_Tensor", 5, i64(6, low=0)),
        )
    ),
    *(
        row(operator_named(name), x, y)
        for name in ("fmax", "fmin")
        for x, y in ((f32(6), f32(6)), (SPECIAL, SPECIAL.flip(0)))
    ),
    *(row(operator_named(name), f32(6), f32(4, 1)) for name in ("atan2", "hypot", "nextafter")),
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
        row(operator_named("linspace", overload), start, end, steps, dtype=dtype)
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
    *(row(operator_named(name), x) for name in [*_ANY, *_SIGNED] for x in (f32(3, 4), bf16(5), SPECIAL, i64(6), f32())),
    *(row(operator_named(name), x) for name in _ANY for x in (flags(4), f32(0, 3))),
    *(row(aten.bitwise_not.default, x) for x in (flags(3), i64(3), torch.tensor(True), i64(3).to(torch.uint8))),
    # Element-wise, two operands. A tensor without dimensions and a Python number widen a tensor only to another kind.
    *(
        row(operator_named(name, "Tensor"), x, y)
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
        row(operator_named(name, "Tensor"), x, y)
        for name in ("add", "sub", "mul", "div")
        for x, y in [(i64(3), 2.5), (bf16(3), 0.1), (i64(), 3), (f32(3), 2)]
    ),
    *(
        row(operator_named(name, "Tensor"), x, True)
        for name in ("add", "mul", "div")
        for x in (f32(3), flags(3), i64(3))
    ),
    *(row(operator_named(name, "Tensor"), flags(6), flags(6)) for name in [*_BOOLEAN, "div", "add"]),
    *(row(operator_named(name, "Tensor"), flags(6), y) for name in _BOOLEAN for y in (i64(6), i64(6).to(torch.uint8))),
    *(
        row(operator_named(name, "Scalar"), x, 3)
        for name in [*_COMPARE, *_BITWISE, "add", "sub", "mul", "div"]
        for x in (i64(4),)
    ),
    *(
        row(operator_named(name, "Scalar"), x, 0.5)
        for name in [*_COMPARE, "mul", "div"]
        for x in (f32(4), bf16(4), i64(4))
    ),
    *(row(operator_named(name, "Scalar"), i64(4), y) for name in _COMPARE for y in (2**40, -(2**40))),
    *(row(operator_named(name, "Scalar"), flags(4), True) for name in _BOOLEAN),
    *(row(operator_named(name, "Tensor"), i64(4), i64(4)) for name in _BITWISE),
    *(row(operator_named(name, "Scalar"), x, 1.5, 2.0) for name in ("add", "sub") for x in (f32(4), bf16(4))),
    *(row(operator_named(name, "Tensor"), f32(4), f32(4), alpha=-2.5) for name in ("add", "sub")),
    *(row(operator_named(name, "Tensor"), i64(4), i64(4), alpha=3) for name in ("add", "sub")),
    *(
        row(operator_named(name), x, y)
        for name in ("maximum", "minimum")
        for x, y in [(f32(4), f32(4)), (bf16(4), f32()), (i64(4), f32(3, 1)), (SPECIAL, f32(7)), (flags(4), flags(4))]
    ),
    *(
        row(operator_named(name), x, y)
        for name in ("logical_and", "logical_or")
        for x, y in [(flags(6), flags(6)), (SPECIAL, flags(7)), (i64(6), f32(6)), (flags(2, 1), i64())]
    ),
    *(row(aten.pow.Tensor_Scalar, f32(5), y) for y in (2, 3, 0, -1, -2, 2.0)),
    *(row(aten.pow.Tensor_Scalar, f32(5).abs(), y) for y in (0.5, -0.5, 1.7)),
    *(row(aten.pow.Tensor_Scalar, x, 2) for x in (bf16(4), i64(4), flags(4), SPECIAL)),
    *(row(aten.pow.Tensor_Scalar, x, y) for x in (SPECIAL, i64(4, low=1)) for y in (0.5, -0.5)),
    *(row(aten.pow.Scalar, base, y) for base, y in [(2, f32(4)), (0.5, i64(4)), (3, i64(4, low=0)), (2, bf16(4))]),
    row(aten.pow.Tensor_Tensor, f32(3, 4).abs(), f32(4)),
    row(aten.pow.Tensor_Tensor, bf16(4).abs(), f32()),
    row(aten.pow.Tensor_Tensor, i64(4), i64(4, low=0)),
    *(row(aten.clamp.default, f32(8), *bounds) for bounds in [(-0.5, 0.5), (None, 0.1), (0.1,), (0.5, -0.5)]),
    *(row(aten.clamp.default, x, -1, 1) for x in (bf16(8), i64(8), SPECIAL)),
    row(aten.clamp.default, i64(8), -0.5, 1.5),
    row(aten.clamp.default, i64(8), min=0.5),
    *(row(aten.clamp.default, i64(8), *bounds) for bounds in [(-(2**40), 2), (2, 2**40), (None, 2**31)]),
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
]
