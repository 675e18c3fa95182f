"""Optimizers as functions: they go into the step's graph like everything else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wholestep.config.node import Dtype, Node


@dataclass(frozen=True, kw_only=True)
class AdamW(Node):
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101), with the order of operations of `torch.optim.AdamW`.

    Attributes:
        lr: peak learning rate; the schedule multiplies it.
        betas: decay of the first and second moment.
        eps: added to the root of the second moment.
        weight_decay: decoupled; the weight shrinks by `lr * weight_decay` a step.
        clip_norm: gradients are scaled down to this global norm; None leaves them.
        exp_avg_dtype: what the first moment is stored in between steps; bfloat16 saves 2 bytes a parameter.
    """

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float | None = 1.0
    exp_avg_dtype: Dtype = "float32"

    @property
    def slots(self) -> dict[str, torch.dtype]:
        """What is stored for each parameter, of its own shape and this dtype, zero at the start."""
        return {"exp_avg": getattr(torch, self.exp_avg_dtype), "exp_avg_sq": torch.float32}

    def update_slots(self, grad: Tensor, slots: Sequence[Tensor]) -> list[Tensor]:
        """The slots of one parameter (or of one shard of it: all of this is element-wise) after a gradient.

        Args:
            grad: of the parameter's shape and dtype.
            slots: in the order of `self.slots`, fp32 whatever they are stored in, as are those returned.
        """
        beta1, beta2 = self.betas
        exp_avg, exp_avg_sq = slots
        return [torch.lerp(exp_avg, grad, 1 - beta1), exp_avg_sq * beta2 + grad * grad * (1 - beta2)]

    def update_parameter(self, parameter: Tensor, slots: Sequence[Tensor], lr: Tensor, step: Tensor) -> Tensor:
        """The parameter after a step, from its *updated* slots.

        The two halves are apart so that a step can put a condition on the slots before they are used. A program that
        used slots other than those it stores would have to copy the old ones, which it overwrites.

        Args:
            parameter: fp32.
            slots: after this step's gradient.
            lr: fp32 scalar, this step's learning rate.
            step: fp32 scalar, this step's number, from 1.
        """
        # 1 - beta ** step, without the cancellation that fp32 would suffer while step is small.
        bias_correction1, bias_correction2 = (
            -torch.expm1(step * (math.log(beta) if beta else -math.inf)) for beta in self.betas
        )
        exp_avg, exp_avg_sq = slots
        denominator = exp_avg_sq.sqrt() / bias_correction2.sqrt() + self.eps
        return parameter * (1 - lr * self.weight_decay) - (lr / bias_correction1) * (exp_avg / denominator)


def clip_factor(norm: Tensor, limit: float | None) -> Tensor:
    """What gradients of this global norm are multiplied by, as in `torch.nn.utils.clip_grad_norm_`."""
    return torch.ones_like(norm) if limit is None else torch.clamp(limit / (norm + 1e-6), max=1.0)
