"""The output head and the cross entropy together, a tile of the vocabulary at a time: logits are never whole in memory.

Each tile's logits are made, used and dropped; the backward pass makes them again. It is written for XLA, not in Pallas:
the products are large, and what is done with each tile is element-wise.

Suffixes: R rows (all positions of a batch), B batch, L sequence, D model width, V vocabulary, T a tile of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from torch import Tensor, nn

from wholestep.errors import ConfigError
from wholestep.models.layers.head import LabelLogits
from wholestep.xla.jax_op import jax_op

# Of one tile's logits in fp32, which is what the memory beside results comes to: large enough that products are.
_TILE_BYTES = 256 * 2**20


class FusedCrossEntropy(nn.Module):
    """`LabelLogits` by tiles of the vocabulary."""

    @dataclass(frozen=True, kw_only=True)
    class Config(LabelLogits, name="fused"):
        """Temporary memory does not grow with the vocabulary. Products accumulate in fp32, all else is in fp32.

        Attributes:
            tile: words in a tile; None takes as many as make 256 MiB of logits.
        """

        tile: int | None = None

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.tile is not None and self.tile < 1:
                raise ConfigError(f"fused cross entropy tile is {self.tile}; it is at least 1")

        def build(self) -> FusedCrossEntropy:
            return FusedCrossEntropy(self)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    def forward(self, x_BLD: Tensor, weight_VD: Tensor, labels_BL: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        return label_logits(x_BLD, weight_VD, labels_BL, config.multiplier, config.soft_cap, config.tile)


def _forward(
    x_BLD: jax.Array,
    weight_VD: jax.Array,
    labels_BL: jax.Array,
    multiplier: float,
    soft_cap: float | None,
    tile: int | None,
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    """(label_logits_BL, log_z_BL) in fp32; and what `_backward` takes."""
    x_RD, labels_R = x_BLD.reshape(-1, x_BLD.shape[-1]), labels_BL.reshape(-1)

    def add(carry: tuple[jax.Array, ...], weight_TD: jax.Array, start: Any) -> tuple[jax.Array, ...]:
        largest_R, total_R, label_logits_R = carry
        logits_RT, _ = _logits(x_RD, weight_TD, multiplier, soft_cap)
        new_R = jnp.maximum(largest_R, logits_RT.max(-1))
        total_R = total_R * jnp.exp(largest_R - new_R) + jnp.exp(logits_RT - new_R[:, None]).sum(-1)
        picked_R = jnp.where(_is_label(labels_R, start, weight_TD.shape[0]), logits_RT, 0).sum(-1)
        return new_R, total_R, label_logits_R + picked_R

    zeros_R = jnp.zeros(labels_R.shape, jnp.float32)
    start = (jnp.full_like(zeros_R, -jnp.inf), zeros_R, zeros_R)
    largest_R, total_R, label_logits_R = _over_tiles(add, start, weight_VD, _tile(tile, x_RD, weight_VD))
    log_z_R = largest_R + jnp.log(total_R)
    shape = labels_BL.shape
    return (label_logits_R.reshape(shape), log_z_R.reshape(shape)), (
        x_BLD,
        weight_VD,
        labels_BL,
        log_z_R.reshape(shape),
    )


def _backward(
    residuals: Any,
    grads: tuple[jax.Array, jax.Array],
    multiplier: float,
    soft_cap: float | None,
    tile: int | None,
) -> tuple[jax.Array, jax.Array, None]:
    x_BLD, weight_VD, labels_BL, log_z_BL = residuals
    x_RD, labels_R, log_z_R = x_BLD.reshape(-1, x_BLD.shape[-1]), labels_BL.reshape(-1), log_z_BL.reshape(-1)
    of_label_R, of_log_z_R = (grad.reshape(-1, 1) for grad in grads)

    def add(carry: tuple[jax.Array, ...], weight_TD: jax.Array, start: Any) -> tuple[jax.Array, ...]:
        of_x_RD, of_weight_VD = carry
        logits_RT, slope = _logits(x_RD, weight_TD, multiplier, soft_cap)
        of_logits_RT = jnp.exp(logits_RT - log_z_R[:, None]) * of_log_z_R
        of_logits_RT += jnp.where(_is_label(labels_R, start, weight_TD.shape[0]), of_label_R, 0)
        of_logits_RT = (of_logits_RT * slope).astype(x_RD.dtype)
        of_x_RD += jnp.dot(of_logits_RT, weight_TD, preferred_element_type=jnp.float32)
        of_weight_TD = lax.dot_general(of_logits_RT, x_RD, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        return of_x_RD, lax.dynamic_update_slice(of_weight_VD, of_weight_TD.astype(weight_VD.dtype), (start, 0))

    start = (jnp.zeros(x_RD.shape, jnp.float32), jnp.zeros_like(weight_VD))
    of_x_RD, of_weight_VD = _over_tiles(add, start, weight_VD, _tile(tile, x_RD, weight_VD))
    return of_x_RD.astype(x_BLD.dtype).reshape(x_BLD.shape), of_weight_VD, None


def _flops(
    x_BLD: Any, weight_VD: Any, labels_BL: Any, multiplier: float, soft_cap: float | None, tile: int | None
) -> int:
    return 2 * math.prod(x_BLD.shape) * weight_VD.shape[0]


@jax_op("wholestep::label_logits", forward=_forward, backward=_backward, flops=_flops)
def label_logits(
    x_BLD: jax.Array,
    weight_VD: jax.Array,
    labels_BL: jax.Array,
    multiplier: float,
    soft_cap: float | None,
    tile: int | None,
) -> tuple[jax.Array, jax.Array]:
    """(label_logits_BL, log_z_BL) in fp32, as `LabelLogits` says; with V a part of the vocabulary, give labels counted
    from its start, and combine the parts: the sum of `label_logits`, the logarithm of the summed exponentials of
    `log_z`."""
    return _forward(x_BLD, weight_VD, labels_BL, multiplier, soft_cap, tile)[0]


def _logits(
    x_RD: jax.Array, weight_TD: jax.Array, multiplier: float, soft_cap: float | None
) -> tuple[jax.Array, jax.Array | float]:
    """A tile's logits in fp32, and their derivative by the product that they are made of."""
    logits_RT = lax.dot_general(x_RD, weight_TD, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    logits_RT = logits_RT * multiplier
    if soft_cap is None:
        return logits_RT, multiplier
    bent_RT = jnp.tanh(logits_RT / soft_cap)
    return soft_cap * bent_RT, multiplier * (1 - bent_RT**2)


def _is_label(labels_R: jax.Array, start: Any, size: int) -> jax.Array:
    """bool [R, T]: the word of the tile that is the row's label."""
    return labels_R[:, None] - start == lax.broadcasted_iota(jnp.int32, (labels_R.shape[0], size), 1)


def _tile(tile: int | None, x_RD: jax.Array, weight_VD: jax.Array) -> int:
    lanes = 128
    fitting = max(_TILE_BYTES // (4 * max(x_RD.shape[0], 1)) // lanes, 1) * lanes
    return min(tile or fitting, weight_VD.shape[0])


def _over_tiles(
    add: Callable[..., tuple[jax.Array, ...]], carry: tuple[jax.Array, ...], weight_VD: jax.Array, tile: int
) -> tuple[jax.Array, ...]:
    """`add(carry, tile's weights, its first word)` over the vocabulary in order; what tiles do not divide comes last,
    as a smaller one, so that nothing is padded or copied."""
    full, rest = divmod(weight_VD.shape[0], tile)

    def body(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return add(carry, lax.dynamic_slice_in_dim(weight_VD, i * tile, tile), i * tile)

    carry = lax.fori_loop(0, full, body, carry)
    return add(carry, weight_VD[full * tile :], full * tile) if rest else carry
