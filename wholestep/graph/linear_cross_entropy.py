"""PyTorch's linear layer and cross entropy in chunks of rows: operators that PyTorch computes in Python, of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import linear_cross_entropy


def _with_gradients(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
    allow_retain_graph: bool,
    *compute_grads: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tensors = input, linear_weight, target, linear_bias, weight
    options = reduction, ignore_index, label_smoothing, batch_chunk_size, acc_policy, acc_dtype
    return linear_cross_entropy._linear_cross_entropy_batch_chunked_accumulator(*tensors, *options, *compute_grads)


def _of_each_row(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    ignore_index: int,
    *options: Any,
) -> Tensor:
    tensors = input, linear_weight, target, linear_bias, weight
    return linear_cross_entropy._linear_cross_entropy_batch_chunked_accumulator(
        *tensors, "none", ignore_index, 0.0, *options, False, False, False
    )[0]


DECOMPOSITIONS: dict[torch._ops.OperatorBase, Callable[..., Any]] = {
    torch.ops.torch_nn._linear_cross_entropy_batch_chunked.default: _with_gradients,
    torch.ops.torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default: _of_each_row,
}
