"""Connectionist temporal classification (Graves et al., 2006) as operators whose results have shapes that are known:
PyTorch's own also returns a table that is as wide as the longest target, which a trace does not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, library

aten = torch.ops.aten


@library.custom_op("wholestep::ctc_loss", mutates_args=())
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> Tensor:
    """The loss of each sequence, `[N]`, of log probabilities `[T, N, C]`."""
    return aten._ctc_loss.Tensor(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)[0]


@ctc_loss.register_fake
def _(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


@library.custom_op("wholestep::ctc_loss_backward", mutates_args=())
def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """The gradient of `log_probs`."""
    given = log_probs, targets, input_lengths, target_lengths
    loss, log_alpha = aten._ctc_loss.Tensor(*given, blank, zero_infinity)
    return aten._ctc_loss_backward.Tensor(grad, *given, loss, log_alpha, blank, zero_infinity)


@ctc_loss_backward.register_fake
def _(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    return torch.empty_like(log_probs)


Lengths: TypeAlias = Tensor | Sequence[int]


def _forward(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    lengths = _tensor(input_lengths, targets), _tensor(target_lengths, targets)
    loss = torch.ops.wholestep.ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)
    return loss, log_probs.new_empty(0)  # in place of the table, which only the gradient would read


def _backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    loss: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    lengths = _tensor(input_lengths, targets), _tensor(target_lengths, targets)
    return torch.ops.wholestep.ctc_loss_backward(grad, log_probs, targets, *lengths, blank, zero_infinity)


def _tensor(lengths: Lengths, like: Tensor) -> Tensor:
    return lengths if isinstance(lengths, Tensor) else torch.tensor(lengths, device=like.device)


DECOMPOSITIONS: dict[torch._ops.OperatorBase, Callable[..., Any]] = {
    aten._ctc_loss.default: _forward,
    aten._ctc_loss.Tensor: _forward,
    aten._ctc_loss_backward.default: _backward,
    aten._ctc_loss_backward.Tensor: _backward,
}
