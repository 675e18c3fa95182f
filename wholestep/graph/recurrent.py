"""Cells of LSTMs and GRUs, which PyTorch calls as one operator on devices that are not the CPU.

Each also returns what its gradient needs, `workspace`, in a form that only the two here know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _sum(*terms: Tensor | None) -> Tensor:
    total: Tensor | None = None
    for term in terms:
        if term is not None:
            total = term if total is None else total + term
    assert total is not None
    return total


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The new hidden and cell state, `[batch, hidden]`, of gates `[batch, 4 hidden]`: input, forget, cell, output."""
    i, f, g, o = _sum(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of the gates, of `cx` and of either bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = workspace.chunk(4, 1)
    tanh = cy.tanh()
    through = None if grad_hy is None else grad_hy * o * (1 - tanh * tanh)
    grad_c = _sum(through, grad_cy)
    grad_o = torch.zeros_like(o) if grad_hy is None else grad_hy * tanh
    gates = [
        grad_c * g * i * (1 - i),
        grad_c * cx * f * (1 - f),
        grad_c * i * (1 - g * g),
        grad_o * o * (1 - o),
    ]
    grad_gates = torch.cat(gates, 1)
    return grad_gates, grad_c * f, grad_gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The new state, `[batch, hidden]`, of gates `[batch, 3 hidden]`: reset, update, new."""
    input_r, input_z, input_n = _sum(input_gates, input_bias).chunk(3, 1)
    hidden_r, hidden_z, hidden_n = _sum(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (input_r + hidden_r).sigmoid(), (input_z + hidden_z).sigmoid()
    n = (input_n + r * hidden_n).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hidden_n], 1)


def gru_cell_backward(
    grad: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of both gates, of `hx` and of both biases."""
    r, z, n, hx, hidden_n = workspace.chunk(5, 1)
    grad_z = grad * (hx - n) * z * (1 - z)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_r = grad_n * hidden_n * r * (1 - r)
    of_input = torch.cat([grad_r, grad_z, grad_n], 1)
    of_hidden = torch.cat([grad_r, grad_z, grad_n * r], 1)
    if not has_bias:
        return of_input, of_hidden, grad * z, None, None
    return of_input, of_hidden, grad * z, of_input.sum(0), of_hidden.sum(0)


DECOMPOSITIONS: dict[torch._ops.OperatorBase, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: gru_cell,
    aten._thnn_fused_gru_cell_backward.default: gru_cell_backward,
}
