"""Lookups, their gradients, and the losses that are lookups."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten


@lowers(aten.embedding.default)
def embedding(
    weight: jax.Array,
    indices: jax.Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    return jnp.take(weight, indices, axis=0, mode="clip")


@lowers(aten.embedding_renorm.default)
def embedding_renorm(weight: jax.Array, indices: jax.Array, max_norm: float, norm_type: float) -> jax.Array:
    """Rows that are looked up and are longer than `max_norm` become that long."""
    norms = jnp.linalg.norm(weight.astype(jnp.float32), norm_type, -1, keepdims=True)
    looked_up = jnp.zeros((weight.shape[0], 1), jnp.bool_).at[indices.reshape(-1)].set(True)
    scaled = weight * (max_norm / (norms + 1e-7))
    return jnp.where(looked_up & (norms > max_norm), scaled, weight).astype(weight.dtype)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad: jax.Array, indices: jax.Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> jax.Array:
    rows, places = grad.reshape(-1, grad.shape[-1]), indices.reshape(-1)
    if padding_idx >= 0:
        rows = jnp.where(places[:, None] == padding_idx, 0, rows)
    if scale_grad_by_freq:
        times = jnp.zeros(num_weights, jnp.int32).at[places].add(1, mode="drop")
        rows /= times[places][:, None].astype(rows.dtype)
    return jnp.zeros((num_weights, rows.shape[-1]), grad.dtype).at[places].add(rows, mode="drop")


def _picked(target: jax.Array, classes: int, ignore_index: int) -> jax.Array:
    """bool[rows, classes]: which class each row's target picks, if any. A comparison fuses; a gather does not."""
    columns = lax.broadcasted_iota(target.dtype, (*target.shape, classes), target.ndim)
    return (columns == target[..., None]) & (target != ignore_index)[..., None]


@lowers(aten.nll_loss_forward.default)
def nll_loss_forward(
    log_probs: jax.Array, target: jax.Array, weight: jax.Array | None, reduction: int, ignore_index: int
) -> list[jax.Array]:
    picked = _picked(target, log_probs.shape[-1], ignore_index)
    weights = jnp.ones((), log_probs.dtype) if weight is None else weight
    losses = -jnp.sum(jnp.where(picked, log_probs * weights, 0), -1)
    total_weight = jnp.sum(jnp.where(picked, weights, 0)).astype(log_probs.dtype)
    if reduction == 0:
        return [losses, jnp.zeros((), log_probs.dtype)]
    loss = jnp.sum(losses)
    return [loss / total_weight if reduction == 1 else loss, total_weight]


@lowers(aten.nll_loss_backward.default)
def nll_loss_backward(
    grad: jax.Array,
    log_probs: jax.Array,
    target: jax.Array,
    weight: jax.Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: jax.Array,
) -> jax.Array:
    picked = _picked(target, log_probs.shape[-1], ignore_index)
    if reduction == 1:
        grad = grad / total_weight
    grad = jnp.expand_dims(grad, -1) if grad.ndim else grad
    return jnp.where(picked, -grad if weight is None else -grad * weight, 0).astype(log_probs.dtype)


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(x: jax.Array, indices: Sequence[jax.Array | None]) -> jax.Array:
    return x[tuple(slice(None) if index is None else index for index in indices)]
