"""The gated feed-forward network SwiGLU (Shazeer 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from wholestep.config.node import Node
from wholestep.models.layers.initialization import STD, init_projection, residual_std


class FeedForward(nn.Module):
    """`down(silu(gate(x)) * up(x))`; x_BLD -> out_BLD in x's dtype, `hidden_dim` (F) wide inside."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Node):
        """Its width, and how it starts.

        Attributes:
            hidden_dim: F.
            narrow_up_init: whether the up projection starts as narrow as the down projection.
        """

        hidden_dim: int
        narrow_up_init: bool = False

        def build(self, *, dim: int, num_layers: int) -> FeedForward:
            return FeedForward(self, dim, num_layers)

        def num_parameters(self, dim: int) -> int:
            return 3 * dim * self.hidden_dim

        def flops_per_token(self, dim: int) -> float:
            """Forward and backward: 6 a weight."""
            return 6 * self.num_parameters(dim)

    def __init__(self, config: Config, dim: int, num_layers: int) -> None:
        super().__init__()
        self.init_std, self.narrow_up_init = residual_std(num_layers), config.narrow_up_init
        self.gate_proj = nn.Linear(dim, config.hidden_dim, bias=False)
        self.up_proj = nn.Linear(dim, config.hidden_dim, bias=False)
        self.down_proj = nn.Linear(config.hidden_dim, dim, bias=False)

    def init_weights(self) -> None:
        init_projection(self.gate_proj.weight)
        init_projection(self.up_proj.weight, self.init_std if self.narrow_up_init else STD)
        init_projection(self.down_proj.weight, self.init_std)

    def forward(self, x_BLD: Tensor) -> Tensor:
        hidden_BLF = F.silu(self.gate_proj(x_BLD)) * self.up_proj(x_BLD)
        return self.down_proj(hidden_BLF)
