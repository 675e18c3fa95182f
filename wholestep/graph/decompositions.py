"""The operators that graphs are made without, and PyTorch's rules that take their place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

from wholestep.graph.attention_modules import DECOMPOSITIONS as ATTENTION
from wholestep.graph.ctc import DECOMPOSITIONS as CTC
from wholestep.graph.foreach import DECOMPOSITIONS as FOREACH
from wholestep.graph.linear_algebra import DECOMPOSITIONS as LINEAR_ALGEBRA
from wholestep.graph.linear_cross_entropy import DECOMPOSITIONS as LINEAR_CROSS_ENTROPY
from wholestep.graph.random import DECOMPOSITIONS as RANDOM
from wholestep.graph.recurrent import DECOMPOSITIONS as RECURRENT
from wholestep.graph.weight_norm import DECOMPOSITIONS as WEIGHT_NORM

aten = torch.ops.aten

# Operators that PyTorch would decompose into something that XLA runs worse than a direct lowering: the losses and
# the embedding's gradient would become scatters, a roll a gather, interpolation gathers at places that are computed. Of
# attention, the decomposition would save all probabilities for the gradient; of margin losses, it is wrong or inexact;
# evenly spaced integers need float64; `take`'s reads values of its index.
_LOWERED_WHOLE = (
    aten.nll_loss_forward.default,
    aten.nll_loss_backward.default,
    aten.embedding_dense_backward.default,
    aten.roll.default,
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
    aten.take.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten.multi_margin_loss.default,
    aten.multilabel_margin_loss_forward.default,
    aten.soft_margin_loss_backward.default,
    aten.upsample_nearest1d.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest3d.default,
    aten._upsample_nearest_exact1d.default,
    aten._upsample_nearest_exact2d.default,
    aten._upsample_nearest_exact3d.default,
    aten.upsample_linear1d.default,
)

# Operators outside of PyTorch's core set whose decompositions run well: chains of element-wise operators and means,
# copies of views, indices of triangles.
_DECOMPOSED = (
    aten._batch_norm_with_update_functional,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training,
    aten.addmv,
    aten.as_strided_copy,
    aten.batch_norm_backward,
    aten.elu,
    aten.gelu,
    aten.hardtanh,
    aten.leaky_relu,
    aten.linalg_vector_norm,
    aten.narrow_copy,
    aten.native_batch_norm,
    aten.native_layer_norm,
    aten.permute_copy,
    aten.rrelu_with_noise_backward,
    aten.tril_indices,
    aten.triu_indices,
    aten.unbind_copy,
    aten.view_copy,
)

# Gradients of means, whose rules divide by the number of elements.
_DIVIDING_BY_SIZE = (aten.mse_loss_backward, aten.smooth_l1_loss_backward, aten.huber_loss_backward)


def _of_any_size(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule, which there is no element to compute by for an empty batch."""

    @functools.wraps(rule)
    def gradient(grad: Tensor, x: Tensor, *args: Any, **named: Any) -> Tensor:
        if x.numel():
            return rule(grad, x, *args, **named)
        return named.get("out", named.get("grad_input", torch.zeros_like(x)))

    return gradient


@functools.cache
def decompositions() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """Operator -> the function that computes it of others."""
    core = {op: rule for op, rule in core_aten_decompositions().items() if op not in _LOWERED_WHOLE}
    ours = ATTENTION | CTC | FOREACH | LINEAR_ALGEBRA | LINEAR_CROSS_ENTROPY | RANDOM | RECURRENT | WEIGHT_NORM
    rules = core | get_decompositions(_DECOMPOSED) | ours
    return rules | {op: _of_any_size(rules[op]) for packet in _DIVIDING_BY_SIZE for op in _known(packet, rules)}


def _known(packet: torch._ops.OpOverloadPacket, rules: dict[Any, Any]) -> list[torch._ops.OpOverload]:
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return [op for op in overloads if op in rules]
