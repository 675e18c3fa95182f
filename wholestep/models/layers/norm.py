"""Root-mean-square normalization (Zhang and Sennrich 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wholestep.config.node import Node


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * gain` over the last dimension; x_...D -> the same shape and dtype.

    The division is in fp32; its result is cast to x's dtype before a gain that is the weight itself is applied, the
    order that published Llama weights were trained with. A centred gain is added up and applied in fp32, the order of
    Gemma and of models after it.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Node):
        """Its eps, and what its gain is.

        Attributes:
            eps: added to the mean of squares.
            affine: whether there is a gain, and so a weight.
            center: the gain is this plus the weight, which starts at 0; None: it is the weight, which starts at 1.
        """

        eps: float = 1e-5
        affine: bool = True
        center: float | None = None

        def build(self, *, dim: int) -> RMSNorm:
            return RMSNorm(self, dim)

        def num_parameters(self, dim: int) -> int:
            return dim if self.affine else 0

    def __init__(self, config: Config, dim: int) -> None:
        super().__init__()
        self.eps, self.center = config.eps, config.center
        self.weight = nn.Parameter(torch.empty(dim)) if config.affine else None
        self.init_weights()

    def init_weights(self) -> None:
        if self.weight is not None:
            nn.init.constant_(self.weight, 1.0 if self.center is None else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        x_fp32 = x.float()
        scale = torch.rsqrt(x_fp32.square().mean(-1, keepdim=True) + self.eps)
        unit = x_fp32 * scale
        if self.weight is None:
            return unit.to(x.dtype)
        if self.center is None:
            return unit.to(x.dtype) * self.weight
        return (unit * (self.weight.float() + self.center)).to(x.dtype)
