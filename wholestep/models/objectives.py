"""Objectives: how a module and a batch become a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wholestep.config.node import Node

# (module, batch) -> (loss_sum, weight, metrics): the loss is loss_sum / weight, each summed over all microbatches and
# devices first; metrics are further sums to report.
Objective = Callable[[nn.Module, Mapping[str, Tensor]], tuple[Tensor, Tensor, dict[str, Tensor]]]

IGNORED_LABEL = -100


@dataclass(frozen=True, kw_only=True)
class NextToken(Node):
    """Cross entropy of each label, summed in fp32; the weight is the number of labels that count, in fp32.

    The batch holds `tokens`, `labels`, `positions` and `segment_ids`, each int64 [B, L]. `labels` are already
    shifted: labels[b, i] is the token that should follow tokens[b, i], or -100 where none is asked for.
    """

    def build(self) -> Objective:
        return next_token


def next_token(module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    labels_BL = batch["labels"]
    logits_BLV = module(batch["tokens"], batch["positions"], batch["segment_ids"])
    loss_sum = F.cross_entropy(
        logits_BLV.flatten(0, 1).float(), labels_BL.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    weight = (labels_BL != IGNORED_LABEL).sum(dtype=torch.float32)
    return loss_sum, weight, {}
