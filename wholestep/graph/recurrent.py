"""Cells of recurrent networks: one PyTorch operator each on devices other than the CPU, without a decomposition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Any, ...]:
    """Hidden state, cell state, and the gates after their activations, `[batch, 4 * hidden]`: input, forget, candidate,
    output."""
    gates = input_gates + hidden_gates
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    entering, kept, candidate, shown = gates.chunk(4, -1)
    entering, kept, shown = entering.sigmoid(), kept.sigmoid(), shown.sigmoid()
    candidate = candidate.tanh()
    new = kept * cell + entering * candidate
    return (shown * new.tanh(), new, torch.cat([entering, kept, candidate, shown], -1))


def lstm_cell_backward(
    grad_hidden: Tensor | None,
    grad_new: Tensor | None,
    cell: Tensor,
    new: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Any, ...]:
    """Gradients of the gates, of the cell state, and of a bias."""
    entering, kept, candidate, shown = workspace.chunk(4, -1)
    zero = torch.zeros_like(cell)
    grad_hidden = zero if grad_hidden is None else grad_hidden
    through = new.tanh()
    total = grad_hidden * shown * (1 - through**2) + (zero if grad_new is None else grad_new)
    gates = torch.cat(
        [
            total * candidate * entering * (1 - entering),
            total * cell * kept * (1 - kept),
            total * entering * (1 - candidate**2),
            grad_hidden * through * shown * (1 - shown),
        ],
        -1,
    )
    return gates, total * kept, gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hidden: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Any, ...]:
    """Hidden state, and what the gradient needs, `[batch, 5 * hidden]`: reset, update and candidate after their
    activations, the state before, the hidden part of the candidate."""
    if input_bias is not None and hidden_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    (reset, update, candidate), (from_reset, from_update, remembered) = (
        gates.chunk(3, -1) for gates in (input_gates, hidden_gates)
    )
    reset, update = (reset + from_reset).sigmoid(), (update + from_update).sigmoid()
    candidate = (candidate + reset * remembered).tanh()
    new = candidate + update * (hidden - candidate)
    return new, torch.cat([reset, update, candidate, hidden, remembered], -1)


def gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    """Gradients of both kinds of gates, of the state before, and of both biases."""
    reset, update, candidate, hidden, remembered = workspace.chunk(5, -1)
    grad_update = grad * (hidden - candidate) * update * (1 - update)
    grad_candidate = grad * (1 - update) * (1 - candidate**2)
    grad_reset = grad_candidate * remembered * reset * (1 - reset)
    from_input = torch.cat([grad_reset, grad_update, grad_candidate], -1)
    from_hidden = torch.cat([grad_reset, grad_update, grad_candidate * reset], -1)
    biases = [from_input.sum(0), from_hidden.sum(0)] if has_bias else [None, None]
    return from_input, from_hidden, grad * update, *biases


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: gru_cell,
    aten._thnn_fused_gru_cell_backward.default: gru_cell_backward,
}
"""Operator -> what computes it."""
