"""Optimizers' steps as single operators on lists: `torch.optim`'s with `fused=True`.

PyTorch has kernels of them for its own devices, and no rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wholestep.device.scalars import wide

aten = torch.ops.aten

Tensors = Sequence[Tensor]


def _gradient(grad: Tensor, grad_scale: Tensor | None, maximize: bool) -> Tensor:
    """In fp32 at least, without the scale of the loss, which the stored one loses too."""
    if grad_scale is not None:
        grad.copy_(wide(grad) / grad_scale)
    return -wide(grad) if maximize else wide(grad)


def _write(found_inf: Tensor | None, *values: tuple[Tensor, Tensor]) -> None:
    """Store each second in the first, unless a gradient of the step was not finite."""
    for target, value in values:
        target.copy_(value if found_inf is None else torch.where(found_inf > 0, wide(target), value))


def adam(
    params: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    max_exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    lr: Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    decoupled: bool,
) -> None:
    """Kingma & Ba 2015; with `decoupled` weight decay Loshchilov & Hutter 2019. `state_steps` count this step."""
    for i, param in enumerate(params):
        grad, old, step = _gradient(grads[i], grad_scale, maximize), wide(param), state_steps[i]
        if decoupled:
            old = old * (1 - lr * weight_decay)
        else:
            grad = grad + weight_decay * old
        exp_avg = wide(exp_avgs[i]).lerp(grad, 1 - beta1)
        exp_avg_sq = wide(exp_avg_sqs[i]) * beta2 + grad * grad * (1 - beta2)
        largest = torch.maximum(wide(max_exp_avg_sqs[i]), exp_avg_sq) if amsgrad else exp_avg_sq
        denominator = largest.sqrt() / (1 - beta2**step).sqrt() + eps
        new = old - lr / (1 - beta1**step) * exp_avg / denominator
        _write(found_inf, (param, new), (exp_avgs[i], exp_avg), (exp_avg_sqs[i], exp_avg_sq))
        if amsgrad:
            _write(found_inf, (max_exp_avg_sqs[i], largest))


def sgd(
    params: Tensors,
    grads: Tensors,
    momentum_buffers: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Stochastic gradient descent, its buffers what PyTorch's are: the first step's is the gradient."""
    for i, param in enumerate(params):
        grad = _gradient(grads[i], grad_scale, maximize) + weight_decay * wide(param)
        if momentum:
            old = wide(momentum_buffers[i])
            buffer = grad if is_first_step else momentum * old + (1 - dampening) * grad
            _write(found_inf, (momentum_buffers[i], buffer))
            grad = grad + momentum * buffer if nesterov else buffer
        _write(found_inf, (param, wide(param) - lr * grad))


def adagrad(
    params: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Duchi et al. 2011. `state_steps` count this step."""
    for i, param in enumerate(params):
        grad = _gradient(grads[i], grad_scale, maximize) + weight_decay * wide(param)
        total = wide(state_sums[i]) + grad * grad
        new = wide(param) - lr / (1 + (state_steps[i] - 1) * lr_decay) * grad / (total.sqrt() + eps)
        _write(found_inf, (param, new), (state_sums[i], total))


_STEPS: dict[Any, Callable[..., None]] = {
    aten._fused_adam_: functools.partial(adam, decoupled=False),
    aten._fused_adamw_: functools.partial(adam, decoupled=True),
    aten._fused_sgd_: sgd,
    aten._fused_adagrad_: adagrad,
}
FUSED = {getattr(packet, name): step for packet, step in _STEPS.items() for name in ("default", "tensor_lr")}
"""Operator -> what computes it, its learning rate a tensor without dimensions."""
