"""The pre-norm decoder-only transformer that model families share.

Suffixes: B batch, L sequence, D model width, V vocabulary, P rotary pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from wholestep.config.node import Node
from wholestep.errors import ConfigError
from wholestep.models.layers.attention import Attention
from wholestep.models.layers.feed_forward import FeedForward
from wholestep.models.layers.head import Head
from wholestep.models.layers.initialization import STD
from wholestep.models.layers.mixture import MixtureOfExperts
from wholestep.models.layers.norm import RMSNorm
from wholestep.models.layers.rotary import RotaryEmbedding


class DecoderLayer(nn.Module):
    """Attention, then feed-forward, each on a normalized copy of the residual stream; x_BLD -> x_BLD.

    `balance_B`, fp32, passes by: the sum of what the mixtures of experts of earlier layers want minimized comes out
    with this layer's added; None where no layer wants anything. With `post_attention_norm` and
    `post_feed_forward_norm`, what each adds to the stream is normalized too.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Node):
        attention_norm: RMSNorm.Config
        attention: Attention.Config
        post_attention_norm: RMSNorm.Config | None = None
        feed_forward_norm: RMSNorm.Config
        feed_forward: FeedForward.Config | MixtureOfExperts.Config
        post_feed_forward_norm: RMSNorm.Config | None = None

        def build(self, *, dim: int, num_layers: int) -> DecoderLayer:
            return DecoderLayer(self, dim, num_layers)

        def num_parameters(self, dim: int) -> int:
            norms = (self.post_attention_norm, self.post_feed_forward_norm)
            parts = (self.attention_norm, self.attention, self.feed_forward_norm, self.feed_forward)
            return sum(part.num_parameters(dim) for part in (*parts, *norms) if part is not None)

        def flops_per_token(self, dim: int, sequence_length: int) -> float:
            return self.attention.flops_per_token(dim, sequence_length) + self.feed_forward.flops_per_token(dim)

    def __init__(self, config: Config, dim: int, num_layers: int) -> None:
        super().__init__()
        self.attention_norm = config.attention_norm.build(dim=dim)
        self.attention = config.attention.build(dim=dim, num_layers=num_layers)
        self.post_attention_norm = _optional(config.post_attention_norm, dim)
        self.feed_forward_norm = config.feed_forward_norm.build(dim=dim)
        self.feed_forward = config.feed_forward.build(dim=dim, num_layers=num_layers)
        self.post_feed_forward_norm = _optional(config.post_feed_forward_norm, dim)

    def init_weights(self) -> None:
        for part in self.children():
            part.init_weights()

    def forward(
        self, x_BLD: Tensor, balance_B: Tensor | None, cos_BLH: Tensor, sin_BLH: Tensor, segment_ids_BL: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        added_BLD = self.attention(self.attention_norm(x_BLD), cos_BLH, sin_BLH, segment_ids_BL)
        if self.post_attention_norm is not None:
            added_BLD = self.post_attention_norm(added_BLD)
        x_BLD = x_BLD + added_BLD
        added_BLD = self.feed_forward(self.feed_forward_norm(x_BLD))
        if isinstance(self.feed_forward, MixtureOfExperts):
            added_BLD, own_B = added_BLD
            balance_B = balance_B if own_B is None else balance_B + own_B
        if self.post_feed_forward_norm is not None:
            added_BLD = self.post_feed_forward_norm(added_BLD)
        return x_BLD + added_BLD, balance_B


def _optional(norm: RMSNorm.Config | None, dim: int) -> RMSNorm | None:
    return None if norm is None else norm.build(dim=dim)


class Decoder(nn.Module):
    """tokens_BL, positions_BL, segment_ids_BL (integers) -> logits_BLV in the weights' dtype.

    With labels_BL (integers) instead (label_logits_BL, log_z_BL, balance_B), fp32: what the cross entropy takes of the
    logits (`wholestep.models.layers.head.LabelLogits`), and the mean of the terms that mixtures of experts want
    minimized for each row, None where they want nothing.

    Positions restart at 0 with each document packed in a row; segment ids number the documents, 0 being padding. With
    `tie_embeddings`, `lm_head.weight` is the parameter `embed_tokens.weight` itself.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Node):
        """Everything about a model; layers may differ.

        Attributes:
            vocab_size: V.
            dim: D.
            layers: one by one.
            rotary: shared by all layers.
            norm: before the head.
            embedding_norm: of the embedded tokens; None for none.
            lm_head: the output head.
            tie_embeddings: whether embedding and head are one parameter.
            embedding_std: width of the embedding's first values.
            residual_init: how wide those projections of a layer start that write to the residual stream: all alike, by
                the number of layers, or ever narrower, `by_depth` (Zhang et al. 2019, depth-scaled initialization).
        """

        vocab_size: int
        dim: int
        layers: tuple[DecoderLayer.Config, ...]
        rotary: RotaryEmbedding.Config
        norm: RMSNorm.Config
        embedding_norm: RMSNorm.Config | None = None
        lm_head: Head.Config = field(default_factory=Head.Config)
        tie_embeddings: bool = False
        embedding_std: float = STD
        residual_init: Literal["alike", "by_depth"] = "alike"

        def build(self) -> Decoder:
            return Decoder(self)

        def num_parameters(self) -> int:
            """The number of distinct parameters of the built model."""
            embeddings = self.vocab_size * self.dim * (1 if self.tie_embeddings else 2)
            layers = sum(layer.num_parameters(self.dim) for layer in self.layers)
            norms = (norm.num_parameters(self.dim) for norm in (self.embedding_norm, self.norm) if norm is not None)
            return embeddings + layers + sum(norms)

        def flops_per_token(self, sequence_length: int) -> float:
            """Model FLOPs of one token's forward and backward pass, the figure that MFU is reckoned by.

            6 a weight that is multiplied (the output head counts, the embedding lookup does not, nor do norms), plus
            12 * N * H * L a layer for attention over the whole row: the causal half is not taken off, and nothing is
            added for recomputation. This is the convention of Chowdhery et al. 2022 (PaLM), appendix B.
            """
            layers = sum(layer.flops_per_token(self.dim, sequence_length) for layer in self.layers)
            return layers + 6 * self.vocab_size * self.dim

        def head_dim(self) -> int:
            """The head width that all layers share, since they share the rotary embedding."""
            widths = {layer.attention.head_dim for layer in self.layers}
            if len(widths) != 1:
                raise ConfigError(f"layers must agree on one attention.head_dim, got {sorted(widths) or 'no layers'}")
            return widths.pop()

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.dim)
        self.embedding_norm = _optional(config.embedding_norm, config.dim)
        self.layers = nn.ModuleList(
            layer.build(dim=config.dim, num_layers=number if config.residual_init == "by_depth" else len(config.layers))
            for number, layer in enumerate(config.layers, start=1)
        )
        parts = (layer.feed_forward for layer in config.layers)
        self.balanced_layers = sum(isinstance(p, MixtureOfExperts.Config) and p.balance == "loss" for p in parts)
        self.rotary = config.rotary.build(head_dim=config.head_dim())
        self.norm = config.norm.build(dim=config.dim)
        self.lm_head = config.lm_head.build(dim=config.dim, vocab_size=config.vocab_size)
        if config.tie_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def init_weights(self) -> None:
        """Initialize every parameter and buffer in place; traceable, and so is each layer's own."""
        nn.init.normal_(self.embed_tokens.weight, std=self.config.embedding_std)
        if self.embedding_norm is not None:
            self.embedding_norm.init_weights()
        for layer in self.layers:
            layer.init_weights()
        self.rotary.init_weights()
        self.norm.init_weights()
        if not self.config.tie_embeddings:
            self.lm_head.init_weights()

    def forward(
        self, tokens_BL: Tensor, positions_BL: Tensor, segment_ids_BL: Tensor, labels_BL: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor, Tensor | None]:
        x_BLD = self.embed_tokens(tokens_BL)
        if self.embedding_norm is not None:
            x_BLD = self.embedding_norm(x_BLD)
        cos_BLH, sin_BLH = self.rotary(positions_BL)
        balance_B = (
            x_BLD.new_zeros(x_BLD.shape[0], dtype=torch.float32) if self.training and self.balanced_layers else None
        )
        for layer in self.layers:
            x_BLD, balance_B = layer(x_BLD, balance_B, cos_BLH, sin_BLH, segment_ids_BL)
        if balance_B is not None:
            balance_B = balance_B / self.balanced_layers
        x_BLD = self.norm(x_BLD)
        return self.lm_head(x_BLD) if labels_BL is None else (*self.lm_head(x_BLD, labels_BL), balance_B)
