"""Rotary position embedding (Su et al. 2021, RoFormer), with the frequency scaling of Llama 3.1.

Suffixes: B batch, L sequence, N heads, H head width, P pairs (H / 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wholestep.config.node import Node
from wholestep.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling(Node):
    """Stretches long wavelengths so that a model trained on short text reads long text (Llama 3.1's release).

    A frequency that turns more than `high_freq_factor` times within the original context is kept, one that turns
    fewer than `low_freq_factor` times is divided by `factor`, and between the two the result is interpolated
    linearly in the number of turns.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    def scale(self, frequencies_P: Tensor) -> Tensor:
        turns_P = frequencies_P * (self.original_max_position / (2 * math.pi))
        kept_P = (turns_P - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return torch.lerp(frequencies_P / self.factor, frequencies_P, kept_P.clamp(0.0, 1.0))


class RotaryEmbedding(nn.Module):
    """positions_BL (integers) -> (cos_BLH, sin_BLH) in fp32, as `rotate` takes them; computed once a forward and shared
    by all layers.

    `inverse_frequencies` is a non-persistent fp32 buffer; casting the whole module to a narrower dtype would lose
    positions, so mixed precision must leave it alone.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Node):
        theta: float = 500000.0
        max_sequence_length: int = 8192
        scaling: Llama3Scaling | None = None

        def build(self, *, head_dim: int) -> RotaryEmbedding:
            if head_dim % 2:
                raise ConfigError(f"rotary embedding turns pairs of channels: head_dim must be even, got {head_dim}")
            return RotaryEmbedding(self, head_dim)

    def __init__(self, config: Config, head_dim: int) -> None:
        super().__init__()
        self.config = config
        self.head_dim = head_dim
        self.register_buffer("inverse_frequencies", self._frequencies(), persistent=False)

    def init_weights(self) -> None:
        self.inverse_frequencies.copy_(self._frequencies(self.inverse_frequencies.device))

    def forward(self, positions_BL: Tensor) -> tuple[Tensor, Tensor]:
        length, limit = positions_BL.shape[1], self.config.max_sequence_length
        if length > limit:
            raise ConfigError(
                f"a row of {length} tokens is longer than the model's rotary.max_sequence_length, {limit}"
            )
        angles_BLP = positions_BL.unsqueeze(-1).float() * self.inverse_frequencies
        cos_BLP, sin_BLP = angles_BLP.cos(), angles_BLP.sin()
        return torch.cat((cos_BLP, cos_BLP), dim=-1), torch.cat((-sin_BLP, sin_BLP), dim=-1)

    def _frequencies(self, device: torch.device | None = None) -> Tensor:
        exponents_P = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device) / self.head_dim
        frequencies_P = 1.0 / (self.config.theta**exponents_P)
        scaling = self.config.scaling
        return frequencies_P if scaling is None else scaling.scale(frequencies_P)


def rotate(x_BLNH: Tensor, cos_BLH: Tensor, sin_BLH: Tensor) -> Tensor:
    """Turn channel pairs (i, i + H / 2) of every head by their angle: in fp32, returned in x's dtype.

    Pairing halves rather than neighbours is the layout of Hugging Face weights, so importing permutes nothing.

    Args:
        x_BLNH: queries or keys.
        cos_BLH: fp32, that of a pair's angle for both of its channels.
        sin_BLH: fp32, negative for the first of the two.
    """
    return _Rotate.apply(x_BLNH, cos_BLH, sin_BLH)


class _Rotate(torch.autograd.Function):
    """Its gradient is the rotation back, rounded once; autograd would round each half's gradient before their sum."""

    @staticmethod
    def forward(ctx: Any, x_BLNH: Tensor, cos_BLH: Tensor, sin_BLH: Tensor) -> Tensor:
        ctx.save_for_backward(cos_BLH, sin_BLH)
        return _turned(x_BLNH, cos_BLH, sin_BLH)

    @staticmethod
    def backward(ctx: Any, grad_BLNH: Tensor) -> tuple[Tensor, None, None]:
        cos_BLH, sin_BLH = ctx.saved_tensors
        return _turned(grad_BLNH, cos_BLH, -sin_BLH), None, None


def _turned(x_BLNH: Tensor, cos_BLH: Tensor, sin_BLH: Tensor) -> Tensor:
    # Whole heads, in x's own dtype: of heads that are split, XLA for TPU makes arrays half as wide as a vector, and
    # reads and writes three times as much (docs/decisions.md).
    other_BLNH = x_BLNH.roll(x_BLNH.shape[-1] // 2, dims=-1)
    turned_BLNH = x_BLNH.float() * cos_BLH.unsqueeze(2) + other_BLNH.float() * sin_BLH.unsqueeze(2)
    return turned_BLNH.to(x_BLNH.dtype)
