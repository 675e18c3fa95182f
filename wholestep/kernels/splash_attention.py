"""Splash attention: blocks of scores that never leave the chip's fast memory, and blocks that no query sees skipped.

The kernels are JAX's (`jax.experimental.pallas.ops.tpu.splash_attention`, after Dao et al. 2022, FlashAttention). Here
they take rows of any length, segment ids and scale, and give their gradient what it needs and no more: q, k, v, the
result and one logarithm a query.

Suffixes: B batch, L sequence, N query heads, K key/value heads, H head width.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from torch import Tensor, nn

from wholestep.errors import ConfigError
from wholestep.models.layers.attention import CoreAttention
from wholestep.xla.chips import chip_lowered_for
from wholestep.xla.jax_op import jax_op

_LANES = 128
# Places of padding, in queries and in keys: not equal to each other, nor to what numbers a document.
_NO_QUERY, _NO_KEY = -(2**31), -(2**31) + 1


class SplashAttention(nn.Module):
    """The core of attention as a TPU kernel."""

    @dataclass(frozen=True, kw_only=True)
    class Config(CoreAttention, name="splash"):
        """Memory grows with the length of a row, not with its square. Products take the inputs' dtype and accumulate
        in fp32; softmax in fp32.

        Attributes:
            block_q: queries in a block, a multiple of 128; None takes them from a table by chip and shape.
            block_kv: keys in a block, likewise.
        """

        block_q: int | None = None
        block_kv: int | None = None

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("block_q", "block_kv"):
                block = getattr(self, name)
                if block is not None and (block < _LANES or block % _LANES):
                    raise ConfigError(f"splash attention {name} is {block}; it is a multiple of {_LANES}")

        def build(self) -> SplashAttention:
            return SplashAttention(self)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    def forward(self, q_BLNH: Tensor, k_BLKH: Tensor, v_BLKH: Tensor, segment_ids_BL: Tensor) -> Tensor:
        config = self.config
        return splash_attention(
            q_BLNH,
            k_BLKH,
            v_BLKH,
            segment_ids_BL,
            causal=config.causal,
            window=config.window,
            soft_cap=config.soft_cap,
            scale=q_BLNH.shape[-1] ** -0.5 if config.scale is None else config.scale,
            block_q=config.block_q,
            block_kv=config.block_kv,
        )


@dataclass(frozen=True)
class Blocks:
    """Sizes of blocks, all multiples of 128.

    Attributes:
        length: of a row, padded to a multiple of both.
        q: queries in a block.
        kv: keys in a block.
        fused: whether one kernel computes all three gradients. It computes scores once instead of twice, and keeps a
            partial gradient of the queries for each block of keys.
    """

    length: int
    q: int
    kv: int
    fused: bool

    @staticmethod
    def of(length: int, window: int | None, head_dim: int, q: int | None, kv: int | None) -> Blocks:
        """Those of the table for the chip that is lowered for, unless `q` and `kv` say otherwise."""
        largest = _largest_block(head_dim)
        if window is not None:
            # What a block of queries reads beside its window is in vain: two blocks at most.
            largest = min(largest, max(512, _up(window, _LANES) // 2 // _LANES * _LANES))
        padded = _up(length, _LANES)
        # The one that pads least, the largest of equals.
        halvings = [size for size in (largest, largest // 2, largest // 4) if size >= 512] or [largest]
        block = min(padded, min(halvings, key=lambda size: (_up(length, size), -size)))
        q, kv = min(q or block, padded), min(kv or block, padded)
        padded = _up(length, int(np.lcm(q, kv)))
        return Blocks(padded, q, kv, fused=padded // kv <= _FUSED_BLOCKS)

    def sizes(self) -> kernel.BlockSizes:
        compute = next(size for size in (512, 384, 256, _LANES) if self.kv % size == 0)
        apart = {} if self.fused else {"block_q_dq": self.q, "block_kv_dq": self.kv}
        return kernel.BlockSizes(
            block_q=self.q,
            block_kv=self.kv,
            block_kv_compute=compute,
            block_q_dkv=self.q,
            block_kv_dkv=self.kv,
            block_kv_dkv_compute=compute,
            use_fused_bwd_kernel=self.fused,
            **apart,
        )


# The partial gradients of the queries, one for each block of keys, are as large as that many copies of the queries.
_FUSED_BLOCKS = 4

# Chip -> the largest block for heads up to 128 wide. Public JAX recipes use 2,048 on v6e and TPU7x (MaxText's for Llama
# 3.1 on both); half of that where the fast memory is smaller. Heads twice as wide take blocks half as long.
_BLOCK = {"v5e": 1024, "v5p": 1024, "v6e": 2048, "tpu7x": 2048}
_INTERPRETED_BLOCK = 512


def _largest_block(head_dim: int) -> int:
    chip = chip_lowered_for()
    block = _BLOCK.get(chip.name, 1024) if chip else _INTERPRETED_BLOCK
    return block if head_dim <= 128 else block // 2


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _forward(
    q_BLNH: jax.Array,
    k_BLKH: jax.Array,
    v_BLKH: jax.Array,
    segment_ids_BL: jax.Array,
    *,
    scale: float,
    interpret: bool,
    **settings: Any,
) -> tuple[jax.Array, Any]:
    """out_BLNH in v's dtype; and what `_backward` takes."""
    if q_BLNH.size == 0:
        nothing = jnp.zeros(q_BLNH.shape[:3], jnp.float32).transpose(0, 2, 1)
        return jnp.zeros_like(q_BLNH), (q_BLNH, k_BLKH, v_BLKH, segment_ids_BL, q_BLNH, nothing)
    (_, length, heads, head_dim) = q_BLNH.shape
    blocks, run = _kernel(length, heads, head_dim, interpret=interpret, **settings)

    def one_row(q_NLH: jax.Array, k_KLH: jax.Array, v_KLH: jax.Array, segment_ids_L: jax.Array) -> Any:
        out_NLH, (log_sum_NL,) = run(q_NLH, k_KLH, v_KLH, _segments(segment_ids_L))
        return out_NLH, log_sum_NL

    padded = _pad_heads(q_BLNH, k_BLKH, v_BLKH, segment_ids_BL, scale, blocks.length)
    out_BNLH, log_sum_BNL = jax.vmap(one_row)(*padded)
    out_BLNH = out_BNLH[:, :, :length].transpose(0, 2, 1, 3).astype(v_BLKH.dtype)
    out_BLNH = jnp.where((segment_ids_BL == 0)[:, :, None, None], 0, out_BLNH)
    return out_BLNH, (q_BLNH, k_BLKH, v_BLKH, segment_ids_BL, out_BLNH, log_sum_BNL[:, :, :length])


def _backward(
    residuals: Any, grad_BLNH: jax.Array, *, scale: float, interpret: bool, **settings: Any
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q_BLNH, k_BLKH, v_BLKH, segment_ids_BL, out_BLNH, log_sum_BNL = residuals
    if q_BLNH.size == 0:
        return jnp.zeros_like(q_BLNH), jnp.zeros_like(k_BLKH), jnp.zeros_like(v_BLKH), None
    (_, length, heads, head_dim) = q_BLNH.shape
    blocks, run = _kernel(length, heads, head_dim, interpret=interpret, **settings)
    # Padding has no gradient, and gives none to the keys.
    grad_BLNH = jnp.where((segment_ids_BL == 0)[:, :, None, None], 0, grad_BLNH)
    missing = blocks.length - length
    out_BNLH, grad_BNLH = (_pad(x.transpose(0, 2, 1, 3), 2, missing) for x in (out_BLNH, grad_BLNH))

    def one_row(q: Any, k: Any, v: Any, segment_ids_L: Any, out: Any, log_sum: Any, grad: Any) -> Any:
        saved = (q, k, v, _segments(segment_ids_L), None, out, log_sum, run.dq_mask_info, run.dkv_mask_info)
        # Not public, but the only way to the backward kernels that does not run the forward one again.
        *_, of_q, of_k, of_v, _, _ = kernel._splash_attention_bwd(**run.kwargs, res=saved, do=grad)
        return of_q, of_k, of_v

    padded = _pad_heads(q_BLNH, k_BLKH, v_BLKH, segment_ids_BL, scale, blocks.length)
    grads = jax.vmap(one_row)(*padded, out_BNLH, _pad(log_sum_BNL, 2, missing), grad_BNLH)
    of_q, of_k, of_v = (grad[:, :, :length].transpose(0, 2, 1, 3) for grad in grads)
    return (of_q.astype(jnp.float32) * scale).astype(q_BLNH.dtype), of_k.astype(k_BLKH.dtype), of_v, None


def _flops(q_BLNH: Any, *, causal: bool, window: int | None, **others: Any) -> int:
    """Both products over the keys that some query sees; documents are not known."""
    B, L, N, H = q_BLNH.shape
    queries = np.arange(L)
    last = queries if causal else np.full(L, L - 1) if window is None else np.minimum(queries + window - 1, L - 1)
    first = np.zeros(L, int) if window is None else np.maximum(queries - window + 1, 0)
    return 4 * B * N * H * int((last - first + 1).sum())


@jax_op("wholestep::splash_attention", forward=_forward, backward=_backward, flops=_flops)
def splash_attention(
    q_BLNH: jax.Array,
    k_BLKH: jax.Array,
    v_BLKH: jax.Array,
    segment_ids_BL: jax.Array,
    *,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
    scale: float,
    block_q: int | None,
    block_kv: int | None,
    interpret: bool,
) -> jax.Array:
    """out_BLNH in v's dtype; what it computes is `wholestep.models.layers.attention.CoreAttention`'s."""
    return _forward(
        q_BLNH,
        k_BLKH,
        v_BLKH,
        segment_ids_BL,
        causal=causal,
        window=window,
        soft_cap=soft_cap,
        scale=scale,
        block_q=block_q,
        block_kv=block_kv,
        interpret=interpret,
    )[0]


def _kernel(
    length: int,
    heads: int,
    head_dim: int,
    *,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
    block_q: int | None,
    block_kv: int | None,
    interpret: bool,
) -> tuple[Blocks, kernel.SplashAttentionKernel]:
    """The kernel of one row, and its blocks."""
    blocks = Blocks.of(length, window, head_dim, block_q, block_kv)
    made = kernel.make_splash_mha(
        mask=masks.MultiHeadMask([_mask(blocks.length, causal, window)] * heads),
        block_sizes=blocks.sizes(),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=soft_cap,
        save_residuals=True,
        interpret=interpret,
    )
    return blocks, made


@functools.cache
def _mask(length: int, causal: bool, window: int | None) -> masks.Mask:
    shape = (length, length)
    if window is None:
        return masks.CausalMask(shape) if causal else masks.FullMask(shape)
    return masks.LocalMask(shape, (window - 1, 0 if causal else window - 1), 0)


def _segments(segment_ids_L: jax.Array) -> kernel.SegmentIds:
    segment_ids_L = segment_ids_L.astype(jnp.int32)
    padding = segment_ids_L == 0
    return kernel.SegmentIds(
        q=jnp.where(padding, _NO_QUERY, segment_ids_L), kv=jnp.where(padding, _NO_KEY, segment_ids_L)
    )


def _pad_heads(
    q_BLNH: jax.Array, k_BLKH: jax.Array, v_BLKH: jax.Array, segment_ids_BL: jax.Array, scale: float, length: int
) -> tuple[jax.Array, ...]:
    """Heads before places, rows padded to `length` with segment 0, queries scaled."""
    missing = length - q_BLNH.shape[1]
    q_BLNH = (q_BLNH.astype(jnp.float32) * scale).astype(q_BLNH.dtype)
    heads = [_pad(x.transpose(0, 2, 1, 3), 2, missing) for x in (q_BLNH, k_BLKH, v_BLKH)]
    return *heads, _pad(segment_ids_BL, 1, missing)


def _pad(x: jax.Array, axis: int, missing: int) -> jax.Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, missing)
    return jnp.pad(x, widths) if missing else x
