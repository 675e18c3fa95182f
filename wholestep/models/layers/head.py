"""The output head: from the residual stream to logits, or straight to what a loss takes of them.

Suffixes: B batch, L sequence, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wholestep.config.node import Node
from wholestep.errors import ConfigError
from wholestep.models.layers.initialization import STD, init_projection

IGNORED_LABEL = -100


@dataclass(frozen=True, kw_only=True)
class LabelLogits(Node):
    """What the cross entropy takes of the logits, whatever computes it. Builds a module
    `forward(x_BLD, weight_VD, labels_BL) -> (label_logits_BL, log_z_BL)`, both fp32.

    `label_logits` are the logits that the labels pick, 0 where a label is not in [0, V); `log_z` is the logarithm of
    the sum of the exponentials of all V. The cross entropy is `log_z - label_logits`. Kept apart, the two serve a
    vocabulary that is split over devices as well (`log_z` of the parts combine, `label_logits` add up), and a loss on
    `log_z`.

    Attributes:
        multiplier: of the logits.
        soft_cap: logits are bent to `soft_cap * tanh(logit / soft_cap)` after that; None leaves them.
    """

    multiplier: float = 1.0
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        if self.soft_cap is not None and not 0 < self.soft_cap < math.inf:
            raise ConfigError(f"logits' soft_cap is {self.soft_cap}; it is a finite number greater than 0")

    def shape_logits(self, logits: Tensor) -> Tensor:
        """Multiplier and soft cap; fp32 if there is any, the logits themselves if not."""
        if self.multiplier != 1.0:
            logits = logits.float() * self.multiplier
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits.float() / self.soft_cap)
        return logits


class WholeLogits(nn.Module):
    """The logits of all positions at once: the reference that every fused loss is compared against."""

    @dataclass(frozen=True, kw_only=True)
    class Config(LabelLogits, name="whole"):
        """The logits, [B, L, V], lie in memory whole, in fp32 too."""

        def build(self) -> WholeLogits:
            return WholeLogits(self)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    def forward(self, x_BLD: Tensor, weight_VD: Tensor, labels_BL: Tensor) -> tuple[Tensor, Tensor]:
        logits_BLV = self.config.shape_logits(F.linear(x_BLD, weight_VD)).float()
        known_BL = (labels_BL >= 0) & (labels_BL < weight_VD.shape[0])
        labels_BL = torch.where(known_BL, labels_BL, IGNORED_LABEL)
        # The "loss" of unnormalized logits is what they are at the labels, negated; its gradient needs no scatter.
        label_logits = -F.nll_loss(logits_BLV.flatten(0, 1), labels_BL.flatten(), reduction="none")
        return label_logits.view(labels_BL.shape), logits_BLV.logsumexp(-1)


class Head(nn.Module):
    """`x_BLD -> logits_BLV` in the weights' dtype (fp32 with a multiplier or a soft cap); with `labels_BL`, what
    `inner` gives for them instead."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Node):
        """`std` is the width of the weight's first values."""

        inner: LabelLogits = field(default_factory=WholeLogits.Config)
        std: float = STD

        def build(self, *, dim: int, vocab_size: int) -> Head:
            return Head(self, dim, vocab_size)

    def __init__(self, config: Config, dim: int, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(vocab_size, dim))
        self.inner = config.inner.build()

    def init_weights(self) -> None:
        init_projection(self.weight, self.config.std)

    def forward(self, x_BLD: Tensor, labels_BL: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if labels_BL is None:
            return self.config.inner.shape_logits(F.linear(x_BLD, self.weight))
        return self.inner(x_BLD, self.weight, labels_BL)
