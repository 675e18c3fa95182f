"""Objectives: how a module and a batch become a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from wholestep.config.node import Node
from wholestep.models.layers.head import IGNORED_LABEL

# (module, batch) -> (loss_sum, weight, metrics): the loss is loss_sum / weight, each summed over all microbatches and
# devices first; metrics are further sums to report.
Objective = Callable[[nn.Module, Mapping[str, Tensor]], tuple[Tensor, Tensor, dict[str, Tensor]]]


@dataclass(frozen=True, kw_only=True)
class NextToken(Node):
    """Cross entropy of each label, summed in fp32; the weight is the number of labels that count, in fp32.

    The batch holds `tokens`, `labels`, `positions` and `segment_ids`, each int64 [B, L]. `labels` are already
    shifted: labels[b, i] is the token that should follow tokens[b, i], or -100 where none is asked for. The module is
    called with `(tokens, positions, segment_ids, labels)` and returns what `wholestep.models.decoder.Decoder` does. Its
    balance of each row, if there is one, is added for each label of the row that counts.

    Where anything is added to it, the cross entropy alone is the metric `cross_entropy`. In evaluation nothing is.

    Attributes:
        z_loss: this times the square of the logarithm of the softmax's denominator is added for each label that
            counts, which keeps logits from drifting (Chowdhery et al. 2022, PaLM, section 5).
    """

    z_loss: float = 0.0

    def build(self) -> Objective:
        return partial(next_token, z_loss=self.z_loss)


def next_token(
    module: nn.Module, batch: Mapping[str, Tensor], *, z_loss: float = 0.0
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    labels_BL = batch["labels"]
    label_logits_BL, log_z_BL, balance_B = module(batch["tokens"], batch["positions"], batch["segment_ids"], labels_BL)
    counted_BL = labels_BL != IGNORED_LABEL
    loss = cross_entropy = torch.where(counted_BL, log_z_BL - label_logits_BL, 0.0).sum()
    if z_loss and module.training:
        loss = loss + z_loss * torch.where(counted_BL, log_z_BL.square(), 0.0).sum()
    if balance_B is not None:
        loss = loss + (balance_B * counted_BL.sum(1)).sum()
    metrics = {} if loss is cross_entropy else {"cross_entropy": cross_entropy}
    return loss, counted_BL.sum(dtype=torch.float32), metrics
