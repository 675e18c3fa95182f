"""Operators that PyTorch has kernels of on its own devices and no rule for, composed of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def unscale(grads: Sequence[Tensor], found_inf: Tensor, inverse_scale: Tensor) -> None:
    """Multiply gradients in place, and note in `found_inf`, `[]`, whether one was no finite number (`GradScaler`)."""
    for grad in grads:
        found_inf.copy_(torch.maximum(found_inf, (~grad.isfinite()).any().to(found_inf.dtype)))
        grad.mul_(inverse_scale)


def update_scale(
    scale: Tensor, growth_tracker: Tensor, found_inf: Tensor, growth: float, backoff: float, interval: int
) -> Tensor:
    """The next scale of the loss, and how many steps it has been right for, in place: less where something was not
    finite, more after `interval` steps where all was, unless that were not finite itself."""
    found, steps = found_inf > 0, growth_tracker + 1
    larger = scale * growth
    is_grown = (steps == interval) & ~found
    scale.copy_(torch.where(found, scale * backoff, torch.where(is_grown & larger.isfinite(), larger, scale)))
    growth_tracker.copy_(torch.where(found | is_grown, torch.zeros_like(steps), steps))
    return scale


def weight_norm_backward(
    grad: Tensor, direction: Tensor, magnitude: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients of both parts of `magnitude * direction / norms`, whose norms are over all dimensions but `dim`."""
    others = [i for i in range(direction.dim()) if i != dim % direction.dim()]
    norms = norms.reshape(magnitude.shape)
    along = (grad * direction).sum(others, keepdim=True) / norms
    return magnitude / norms * (grad - direction * along / norms), along


COMPOSED: dict[Any, Callable[..., Any]] = {
    aten._amp_foreach_non_finite_check_and_unscale_.default: unscale,
    aten._amp_update_scale_.default: update_scale,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
}
"""Operator -> what computes it."""
