"""Causal self-attention with grouped key/value heads (Ainslie et al. 2023) and packed documents.

Suffixes: B batch, L sequence (queries), M sequence (keys), D model width, N query heads, K key/value heads,
G query heads per key/value head (N = K * G), H head width, P pairs (H / 2).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from wholestep.config.node import Node
from wholestep.errors import ConfigError
from wholestep.models.layers.initialization import init_projection, residual_std
from wholestep.models.layers.rotary import rotate

# Finite, so that no row of scores can turn into NaN; far below any score, so that its exponential is zero.
MASKED_SCORE = -1e30


class DotProductAttention(nn.Module):
    """The core of attention written out: the reference that every attention kernel is compared against."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Node):
        def build(self) -> DotProductAttention:
            return DotProductAttention()

    def forward(self, q_BLNH: Tensor, k_BLKH: Tensor, v_BLKH: Tensor, segment_ids_BL: Tensor) -> Tensor:
        """Attend causally within each segment; returns out_BLNH in v's dtype.

        `segment_ids_BL` (integers) numbers the documents packed in a row; 0 is padding, a segment like the others
        that no document sees. Every position sees at least itself. Products run in the inputs' dtype; scale, mask
        and softmax in fp32. Keys and values are not repeated: the G queries that share them are rows of one product.
        """
        B, L, N, H = q_BLNH.shape
        K = k_BLKH.shape[2]
        G = N // K
        q_BKGLH = q_BLNH.reshape(B, L, K, G, H).permute(0, 2, 3, 1, 4)
        scores_BKGLM = (q_BKGLH.reshape(B, K, G * L, H) @ k_BLKH.permute(0, 2, 3, 1)).view(B, K, G, L, L)
        index = torch.arange(L, device=q_BLNH.device)
        visible_BLM = (index[:, None] >= index) & (segment_ids_BL[:, :, None] == segment_ids_BL[:, None, :])
        scores_BKGLM = (scores_BKGLM.float() * H**-0.5).masked_fill(~visible_BLM[:, None, None], MASKED_SCORE)
        probabilities_BKGLM = scores_BKGLM.softmax(-1).to(v_BLKH.dtype)
        out_BKGLH = (probabilities_BKGLM.view(B, K, G * L, L) @ v_BLKH.permute(0, 2, 1, 3)).view(B, K, G, L, H)
        return out_BKGLH.permute(0, 3, 1, 2, 4).reshape(B, L, N, H)


class Attention(nn.Module):
    """Projections, rotation, core attention, output projection; x_BLD -> out_BLD in x's dtype."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Node):
        """`inner` builds the core, `forward(q_BLNH, k_BLKH, v_BLKH, segment_ids_BL) -> out_BLNH`."""

        num_heads: int
        num_kv_heads: int
        head_dim: int
        inner: Node = field(default_factory=DotProductAttention.Config)

        def build(self, *, dim: int, num_layers: int) -> Attention:
            if self.num_heads % self.num_kv_heads:
                raise ConfigError(
                    f"num_kv_heads must divide num_heads, got num_heads={self.num_heads} "
                    f"and num_kv_heads={self.num_kv_heads}"
                )
            return Attention(self, dim, num_layers)

        def num_parameters(self, dim: int) -> int:
            return 2 * dim * self.head_dim * (self.num_heads + self.num_kv_heads)

        def flops_per_token(self, dim: int, sequence_length: int) -> float:
            """Forward and backward: 6 a projection weight, and 12 * N * H * L for both products over a full row."""
            return 6 * self.num_parameters(dim) + 12 * self.num_heads * self.head_dim * sequence_length

    def __init__(self, config: Config, dim: int, num_layers: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.output_std = residual_std(num_layers)
        self.q_proj = nn.Linear(dim, config.num_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, config.num_kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, config.num_kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, dim, bias=False)
        self.inner = config.inner.build()

    def init_weights(self) -> None:
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            init_projection(projection.weight)
        init_projection(self.o_proj.weight, self.output_std)

    def forward(self, x_BLD: Tensor, cos_BLP: Tensor, sin_BLP: Tensor, segment_ids_BL: Tensor) -> Tensor:
        heads = (-1, self.head_dim)
        q_BLNH = rotate(self.q_proj(x_BLD).unflatten(-1, heads), cos_BLP, sin_BLP)
        k_BLKH = rotate(self.k_proj(x_BLD).unflatten(-1, heads), cos_BLP, sin_BLP)
        v_BLKH = self.v_proj(x_BLD).unflatten(-1, heads)
        return self.o_proj(self.inner(q_BLNH, k_BLKH, v_BLKH, segment_ids_BL).flatten(2))
