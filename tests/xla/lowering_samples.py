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


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan])
# Without ties, among which PyTorch leaves the order open.
DISTINCT = torch.randperm(20, generator=_generator).view(4, 5).float() / 4 - 2
PROBABLE = torch.log_softmax(f32(5, 7), -1)
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

_FLOATING = ["cos", "erf", "erfinv", "exp", "expm1", "log", "log1p", "reciprocal", "rsqrt", "sigmoid", "sin", "sqrt"]
_ANY = [*_FLOATING, "tanh", "isinf", "isnan", "logical_not"]
_SIGNED = ["abs", "neg", "relu", "sign"]
_COMPARE = ["eq", "ge", "gt", "le", "lt", "ne"]
_BITWISE = ["bitwise_and", "bitwise_or", "bitwise_xor"]
_BOOLEAN = [*_COMPARE, *_BITWISE, "mul"]


def _op(name: str, overload: str = "default") -> Any:
    return getattr(getattr(aten, name), overload)


SAMPLES = [
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
    *(row(aten.bucketize.Tensor, x, EDGES, right=right) for x in (EDGES, f32(2, 3)) for right in (False, True)),
    row(aten.bucketize.Scalar, 0.5, EDGES, out_int32=True),
    *(row(aten.histc.default, f32(50), *options) for options in [(), (7,), (5, -1, 1)]),
    row(aten.histc.default, torch.ones(4), 4),
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
    Sample(aten.empty_strided.default, ([2, 3], [3, 1]), {}, aten.empty_strided.default, values=False),
    *(
        row(aten.scalar_tensor.default, value, dtype=dtype)
        for value, dtype in [(2.5, torch.bfloat16), (3, torch.int64)]
    ),
    row(aten.scalar_tensor.default, -inf),
    *(row(aten.arange.start_step, *bounds) for bounds in [(0, 5), (5, 0, -2), (0, 1, 0.1), (2, 2)]),
    row(aten.arange.start_step, 1, 6, 2, dtype=torch.bfloat16),
]
