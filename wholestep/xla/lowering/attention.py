"""PyTorch's fused attention as products and a softmax. For long rows a kernel is faster: `wholestep/kernels`."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch

from wholestep.errors import LoweringError
from wholestep.xla.lowering.matmul import precision
from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: jax.Array | None = None,
    scale: float | None = None,
) -> list[jax.Array]:
    """`[B, N, L, H]` each, but keys and values of their own length; with the log of each row's sum, `[B, N, L]`."""
    if dropout_p:
        raise LoweringError("fused attention with dropout has no lowering to XLA yet")
    scores = _product("bnlh,bnsh->bnls", q, k) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], jnp.bool_)), scores, -jnp.inf)
    if attn_mask is not None:
        scores = jnp.where(attn_mask, scores, -jnp.inf) if attn_mask.dtype == jnp.bool_ else scores + attn_mask
    sums = jax.nn.logsumexp(scores, -1, keepdims=True)
    probabilities = jnp.exp(scores - jnp.where(sums == -jnp.inf, 0, sums))  # all zero where all is masked
    return [_product("bnls,bnsh->bnlh", probabilities.astype(v.dtype), v).astype(q.dtype), sums[..., 0]]


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    grad: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    out: jax.Array,
    logsumexp: jax.Array,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: jax.Array | None = None,
    scale: float | None = None,
) -> list[jax.Array]:
    def forward(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attention(q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]

    return list(jax.vjp(forward, q, k, v)[1](grad))


def _product(subscripts: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, x, y, precision=precision(), preferred_element_type=jnp.float32)
