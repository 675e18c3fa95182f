"""Causal self-attention with grouped key/value heads (Ainslie et al. 2023) and packed documents.

Suffixes: B batch, L sequence (queries), M sequence (keys), D model width, N query heads, K key/value heads,
G query heads per key/value head (N = K * G), H head width, P pairs (H / 2), X all query heads (N * H).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from wholestep.config.node import Node
from wholestep.errors import ConfigError
from wholestep.models.layers.initialization import init_projection, residual_std
from wholestep.models.layers.norm import RMSNorm
from wholestep.models.layers.rotary import rotate

# Finite, so that no row of scores can turn into NaN; far below any score, so that its exponential is zero.
MASKED_SCORE = -1e30


@dataclass(frozen=True, kw_only=True)
class CoreAttention(Node):
    """The core of attention: what it computes, whatever computes it. Builds a module
    `forward(q_BLNH, k_BLKH, v_BLKH, segment_ids_BL) -> out_BLNH`, in v's dtype.

    `segment_ids_BL` (integers) numbers the documents packed in a row. A query sees the keys of its own document only.
    Segment 0 is padding: it sees nothing, nothing sees it, and it comes out as zeros.

    Attributes:
        causal: whether a query sees no key after it.
        window: a query sees keys less than so many places away, itself among them; None is any distance.
        soft_cap: scores are bent to `soft_cap * tanh(score / soft_cap)` (Gemma Team 2024, Gemma 2); None leaves them.
        scale: what scores are multiplied by first; None is `H**-0.5`.
    """

    causal: bool = True
    window: int | None = None
    soft_cap: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ConfigError(f"attention window is {self.window}; a query sees at least itself, which is 1")
        if self.soft_cap is not None and not 0 < self.soft_cap < math.inf:
            raise ConfigError(f"attention soft_cap is {self.soft_cap}; it is a finite number greater than 0")
        if self.scale is not None and not math.isfinite(self.scale):
            raise ConfigError(f"attention scale is {self.scale}; it is a finite number")


class DotProductAttention(nn.Module):
    """The core of attention written out: the reference that every attention kernel is compared against."""

    @dataclass(frozen=True, kw_only=True)
    class Config(CoreAttention, name="dot_product"):
        """Scores and probabilities lie in memory whole. Products run in the inputs' dtype; scale, mask and softmax in
        fp32. Keys and values are not repeated: the G queries that share them are rows of one product."""

        def build(self) -> DotProductAttention:
            return DotProductAttention(self)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    def forward(self, q_BLNH: Tensor, k_BLKH: Tensor, v_BLKH: Tensor, segment_ids_BL: Tensor) -> Tensor:
        B, L, N, H = q_BLNH.shape
        K = k_BLKH.shape[2]
        G = N // K
        q_BKGLH = q_BLNH.reshape(B, L, K, G, H).permute(0, 2, 3, 1, 4)
        scores_BKGLM = (q_BKGLH.reshape(B, K, G * L, H) @ k_BLKH.permute(0, 2, 3, 1)).view(B, K, G, L, L)
        scores_BKGLM = scores_BKGLM.float() * (H**-0.5 if self.config.scale is None else self.config.scale)
        if (cap := self.config.soft_cap) is not None:
            scores_BKGLM = cap * torch.tanh(scores_BKGLM / cap)
        hidden_BLM = ~self._visible(segment_ids_BL)
        scores_BKGLM = scores_BKGLM.masked_fill(hidden_BLM[:, None, None], MASKED_SCORE)
        probabilities_BKGLM = scores_BKGLM.softmax(-1).to(v_BLKH.dtype)
        out_BKGLH = (probabilities_BKGLM.view(B, K, G * L, L) @ v_BLKH.permute(0, 2, 1, 3)).view(B, K, G, L, H)
        out_BLNH = out_BKGLH.permute(0, 3, 1, 2, 4).reshape(B, L, N, H)
        return out_BLNH.masked_fill((segment_ids_BL == 0)[:, :, None, None], 0.0)

    def _visible(self, segment_ids_BL: Tensor) -> Tensor:
        """bool [B, L, M]: which keys a query sees. (A padding query sees padding here; it is blanked afterwards.)"""
        visible_BLM = segment_ids_BL[:, :, None] == segment_ids_BL[:, None, :]
        index = torch.arange(segment_ids_BL.shape[1], device=segment_ids_BL.device)
        ahead_LM = index[:, None] - index
        if self.config.causal:
            visible_BLM = visible_BLM & (ahead_LM >= 0)
        if self.config.window is not None:
            visible_BLM = visible_BLM & (ahead_LM.abs() < self.config.window)
        return visible_BLM


class Attention(nn.Module):
    """Projections, rotation, core attention, output projection; x_BLD -> out_BLD in x's dtype."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Node):
        """Heads, and what happens to them before and after the core.

        Attributes:
            num_heads: of queries.
            num_kv_heads: of keys and values; divides `num_heads`.
            head_dim: width of each head.
            inner: the core.
            qk_norm: of each head of queries and of keys, before they are rotated (Henry et al. 2020); None for none.
            rotary: whether queries and keys are rotated by their positions; without, a layer sees no order but the
                causal one (Kazemnejad et al. 2023).
            output_gate: whether what the core returns is multiplied by `sigmoid(gate_proj(x))` (Qiu et al. 2025).
        """

        num_heads: int
        num_kv_heads: int
        head_dim: int
        inner: CoreAttention = field(default_factory=DotProductAttention.Config)
        qk_norm: RMSNorm.Config | None = None
        rotary: bool = True
        output_gate: bool = False

        def build(self, *, dim: int, num_layers: int) -> Attention:
            if self.num_heads % self.num_kv_heads:
                raise ConfigError(
                    f"num_kv_heads must divide num_heads, got num_heads={self.num_heads} "
                    f"and num_kv_heads={self.num_kv_heads}"
                )
            return Attention(self, dim, num_layers)

        def num_parameters(self, dim: int) -> int:
            norms = 0 if self.qk_norm is None else 2 * self.qk_norm.num_parameters(self.head_dim)
            return self._projection_weights(dim) + norms

        def flops_per_token(self, dim: int, sequence_length: int) -> float:
            """Forward and backward: 6 a projection weight, and 12 * N * H * L for both products over a full row, also
            where a window hides most of it."""
            return 6 * self._projection_weights(dim) + 12 * self.num_heads * self.head_dim * sequence_length

        def _projection_weights(self, dim: int) -> int:
            heads = 2 * (self.num_heads + self.num_kv_heads) + (self.num_heads if self.output_gate else 0)
            return dim * self.head_dim * heads

    def __init__(self, config: Config, dim: int, num_layers: int) -> None:
        super().__init__()
        self.head_dim, self.rotary = config.head_dim, config.rotary
        self.init_std = residual_std(num_layers)
        self.q_proj = nn.Linear(dim, config.num_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, config.num_kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, config.num_kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, dim, bias=False)
        self.q_norm = self.k_norm = self.gate_proj = None
        if config.qk_norm is not None:
            self.q_norm = config.qk_norm.build(dim=config.head_dim)
            self.k_norm = config.qk_norm.build(dim=config.head_dim)
        if config.output_gate:
            self.gate_proj = nn.Linear(dim, config.num_heads * config.head_dim, bias=False)
        self.inner = config.inner.build()

    def init_weights(self) -> None:
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.gate_proj):
            if projection is not None:
                init_projection(projection.weight)
        init_projection(self.o_proj.weight, self.init_std)
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                norm.init_weights()

    def forward(self, x_BLD: Tensor, cos_BLH: Tensor, sin_BLH: Tensor, segment_ids_BL: Tensor) -> Tensor:
        heads = (-1, self.head_dim)
        q_BLNH = self.q_proj(x_BLD).unflatten(-1, heads)
        k_BLKH = self.k_proj(x_BLD).unflatten(-1, heads)
        v_BLKH = self.v_proj(x_BLD).unflatten(-1, heads)
        if self.q_norm is not None and self.k_norm is not None:
            q_BLNH, k_BLKH = self.q_norm(q_BLNH), self.k_norm(k_BLKH)
        if self.rotary:
            q_BLNH, k_BLKH = rotate(q_BLNH, cos_BLH, sin_BLH), rotate(k_BLKH, cos_BLH, sin_BLH)
        out_BLX = self.inner(q_BLNH, k_BLKH, v_BLKH, segment_ids_BL).flatten(2)
        if self.gate_proj is not None:
            out_BLX = out_BLX * torch.sigmoid(self.gate_proj(x_BLD))
        return self.o_proj(out_BLX)
