"""`scaled_dot_product_attention` as one operator; for a device it does not know, PyTorch composes it of twenty."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_PLAIN = {Tensor, torch.nn.Parameter}


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """As PyTorch's; like its fused attention on the CPU, not to be differentiated twice, for which there is
    `sdpa_kernel(SDPBackend.MATH)`."""
    if not dropout_p and _is_fused(query, key, value, attn_mask):
        return aten._scaled_dot_product_flash_attention_for_cpu.default(
            query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
        )[0]
    return aten.scaled_dot_product_attention.default.redispatch(
        _CPU, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _is_fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether the one operator computes this: four dimensions, as many heads and features of all three, no gradient of
    the mask; seen by no transformation of functions and no tracing, which know the composed operators."""
    given = [query, key, value] if mask is None else [query, key, value, mask]
    if not torch._C._get_flash_sdp_enabled() or not {type(x) for x in given} <= _PLAIN:
        return False
    if torch._C._functorch.maybe_current_level() is not None or torch.autograd.forward_ad._current_level >= 0:
        return False
    if not query.is_floating_point() or any(x.dtype != query.dtype or x.device != query.device for x in (key, value)):
        return False
    if query.dim() != 4 or key.shape != value.shape:
        return False
    batch, heads, rows, width = query.shape
    if key.dim() != 4 or key.shape[:2] != (batch, heads) or key.shape[3] != width or 0 in (*query.shape, *key.shape):
        return False
    if mask is None:
        return True
    scores = (batch, heads, rows, key.shape[2])
    fits = mask.dim() <= 4 and all(n in (1, m) for n, m in zip(reversed(mask.shape), reversed(scores), strict=False))
    return fits and mask.device == query.device and mask.dtype in (torch.bool, query.dtype) and not mask.requires_grad
