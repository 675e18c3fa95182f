"""Scatters, gathers, cumulative operators, sorting, strides, creation."""

from __future__ import annotations

import torch
from xla.samples.table import (
    DISTINCT,
    EDGES,
    ENDS,
    INDICES,
    MASK,
    PLACES,
    SPECIAL,
    WITH_NAN,
    Sample,
    aten,
    bf16,
    f32,
    flags,
    i64,
    inf,
    operator_named,
    row,
)

ROWS = [
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
        row(operator_named(name), x, dim)
        for name in ("cummax", "cummin", "cumprod")
        for x in (f32(4, 5), bf16(4, 5), i64(4, 5))
        for dim in (0, -1)
    ),
    *(
        row(operator_named(name), x, 0)
        for name in ("cummax", "cummin")
        for x in (SPECIAL, SPECIAL.flip(0), flags(6), f32())
    ),
    *(row(aten.cumprod.default, x, 0) for x in (f32(), flags(4))),
    *(row(aten.logcumsumexp.default, x, dim) for x in (f32(4, 5), bf16(4, 5)) for dim in (0, -1)),
    row(aten.logcumsumexp.default, f32(), 0),
    # What sorts, and what looks up in what is sorted.
    row(aten.topk.default, torch.tensor(2.0), 1),
    row(aten.sort.default, torch.tensor(2.0)),
    *(row(aten.kthvalue.default, DISTINCT, k, *options) for k in (1, 3) for options in [(), (0,), (-1, True)]),
    *(
        row(operator_named(name, "dim"), x, *options)
        for name in ("median", "nanmedian")
        for x in (DISTINCT, WITH_NAN)
        for options in [(0,), (-1, True)]
    ),
    *(
        row(operator_named(name), x)
        for name in ("median", "nanmedian")
        for x in (DISTINCT, WITH_NAN, i64(6), f32(), f32(0))
    ),
    *(row(operator_named(name, "dim"), f32(), 0) for name in ("median", "nanmedian")),
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
        row(operator_named(name), x, *options)
        for name in ("argmax", "argmin")
        for x in (DISTINCT, WITH_NAN, i64(3, 9))
        for options in [(), (0,), (-1, True)]
    ),
    *(row(operator_named(name), f32()) for name in ("argmax", "argmin", "max", "min")),
    *(
        row(operator_named(name, "dim"), x, *options)
        for name in ("max", "min")
        for x in (DISTINCT, WITH_NAN, bf16(3, 4), flags(3, 4))
        for options in [(0,), (-1, True)]
    ),
    *(row(operator_named(name, "dim"), f32(), 0) for name in ("max", "min")),
    *(row(operator_named(name), x) for name in ("max", "min") for x in (WITH_NAN, i64(3, 4), flags(3))),
    *(row(aten.all.default, x) for x in (flags(4), f32(2), i64(3).to(torch.uint8), f32(0))),
    *(row(aten.all.dim, x, 0, keepdim) for x in (flags(3, 4), f32()) for keepdim in (False, True)),
    *(row(aten.all.dims, flags(3, 4), dims) for dims in [[0], [0, -1], []]),
    *(row(aten.prod.default, x) for x in (f32(3, 4), bf16(3), i64(3), flags(2), f32(0))),
    *(row(aten.prod.dim_int, x, 0, keepdim) for x in (f32(3, 4), i64(3), f32()) for keepdim in (False, True)),
    row(aten.prod.dim_int, flags(3, 4), 0, dtype=torch.bool),
    row(aten.prod.default, flags(3, 4), dtype=torch.bool),
    *(
        row(operator_named(name, "correction"), x, dims, correction=correction, keepdim=keepdim)
        for name in ("var", "var_mean")
        for x in (f32(3, 4), bf16(3, 4), torch.complex(f32(3, 4), f32(3, 4)))
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
]
