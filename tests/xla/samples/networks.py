"""Convolutions, pooling, interpolation, bags of embeddings, attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from xla.samples.table import (
    BAG_OF,
    BAG_SIZES,
    BAGS,
    INDICES,
    MANY_LABELS,
    SPECIAL,
    Sample,
    aten,
    bf16,
    f32,
    flags,
    i64,
    inf,
    nan,
    operator_named,
    row,
)


def _max_pooled(pool: Any, x: Tensor, dims: int) -> tuple[Any, ...]:
    """Arguments of the gradient of a pooling of this tensor."""
    options = ([3] * dims, [2] * dims, [1] * dims, [1] * dims, True)
    values, indices = pool(x, *options)
    return f32(*values.shape), x, *options, indices


def _attended(x: Tensor) -> tuple[Tensor, ...]:
    """The first arguments of the gradient of a causal attention of this tensor."""
    q, k, v = x, x.sin(), x.cos()
    return f32(*x.shape), q, k, v, *aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)


ROWS = [
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
        row(operator_named(f"{name}{len(size)}d"), x, size, *scales)
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
        row(operator_named(name), x, size, corners, *[scale] * len(size))
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
        row(operator_named(f"{name}_backward"), f32(1, 2, *size), size, [1, 2, *shape], *corners, *[None] * len(size))
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
    *(row(aten.multilabel_margin_loss_forward.default, f32(2, 4), MANY_LABELS, reduction) for reduction in (0, 1, 2)),
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
