"""The gradient of weight normalization (Salimans and Kingma, 2016), for which PyTorch has no decomposition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of `v` and `g`; the weight is `v * g / norms`, of the norms of slices along `dim`."""
    dims = [each for each in range(v.dim()) if each != dim]
    along = (grad * v).sum(dims, keepdim=True, dtype=norms.dtype)
    grad_v = g / norms * (grad - v * (along / norms.square()))
    return grad_v.to(v.dtype), (along / norms).to(g.dtype)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._weight_norm_interface_backward.default: weight_norm_backward,
}
