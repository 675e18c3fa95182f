"""Root-mean-square normalization (Zhang and Sennrich 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wholestep.config.node import Node


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension; x_...D -> the same shape and dtype.

    The division is in fp32; its result is cast to x's dtype before the weight is applied, the order that published
    Llama weights were trained with.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Node):
        eps: float = 1e-5

        def build(self, *, dim: int) -> RMSNorm:
            return RMSNorm(self, dim)

        def num_parameters(self, dim: int) -> int:
            return dim

    def __init__(self, config: Config, dim: int) -> None:
        super().__init__()
        self.eps = config.eps
        self.weight = nn.Parameter(torch.ones(dim))

    def init_weights(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        x_fp32 = x.float()
        scale = torch.rsqrt(x_fp32.square().mean(-1, keepdim=True) + self.eps)
        return (x_fp32 * scale).to(x.dtype) * self.weight
