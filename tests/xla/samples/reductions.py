"""Reductions, shapes, products, losses, simple lookups."""

from __future__ import annotations

import torch
from xla.samples.table import (
    CLASS_WEIGHTS,
    DISTINCT,
    IGNORED,
    INDICES,
    LABELS,
    LAST,
    PROBABLE,
    SPECIAL,
    aten,
    bf16,
    f16,
    f32,
    flags,
    i64,
    inf,
    nan,
    row,
)

ROWS = [
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
]
