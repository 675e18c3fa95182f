"""What modules of attention call instead of their parts where nothing is trained, composed of these parts again.

PyTorch has kernels for it on its own devices only, and no rule.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """What `nn.MultiheadAttention` calls where nothing is trained, `[B, L, D]` each, and the weights if they are asked
    for.

    Args:
        mask: True for what is not seen, or what is added to scores: `[L, S]` of type 0, `[B, S]` of type 1,
            `[B, N, L, S]` of type 2.
    """
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        F.linear(x, weight, bias).unflatten(-1, (num_head, -1)).transpose(1, 2)
        for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
    )
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        hidden = mask[:, None, None] if mask_type == 1 else mask
        scores = scores.masked_fill(hidden, -math.inf) if hidden.dtype == torch.bool else scores + hidden
    attention = scores.softmax(-1)
    out = F.linear((attention @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, attention.mean(1) if average_attn_weights else attention


def transformer_encoder_layer_fwd(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """What `nn.TransformerEncoderLayer` calls where nothing is trained, `[B, L, D]`."""

    def attend(x: Tensor) -> Tensor:
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return native_multi_head_attention(
            x, x, x, embed_dim, num_heads, *projections, mask, need_weights=False, mask_type=mask_type
        )[0]

    def feed(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    x = src
    for block, weight, bias in ((attend, norm_weight_1, norm_bias_1), (feed, norm_weight_2, norm_bias_2)):
        if norm_first:
            x = x + block(F.layer_norm(x, (embed_dim,), weight, bias, eps))
        else:
            x = F.layer_norm(x + block(x), (embed_dim,), weight, bias, eps)
    return x


DECOMPOSITIONS = {
    aten._native_multi_head_attention.default: native_multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: transformer_encoder_layer_fwd,
}
"""Operator -> what computes it."""
