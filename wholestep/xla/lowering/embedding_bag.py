"""Sums, means and maxima over bags of rows of a table, and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from wholestep.errors import LoweringError
from wholestep.xla.lowering.indexing import embedding_dense_backward
from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten

_MEAN, _MAX = 1, 2


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default, context=True)
def embedding_bag(
    ctx: Context,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> list[jax.Array]:
    output, *others = ctx.node.meta["val"]
    bags, width = output.shape
    bag = _bag_of(indices, offsets, bags)
    counts_at = _counted(indices, bag, padding_idx)
    sizes = jnp.zeros(bags, jnp.int32).at[bag].add(counts_at.astype(jnp.int32))
    rows = jnp.take(weight, indices, axis=0, mode="clip").astype(jnp.float32)
    if mode == _MAX:
        rows = jnp.where(counts_at[:, None], rows, -jnp.inf)
        values = jnp.full((bags, width), -jnp.inf).at[bag].max(rows)
        place = jnp.where(rows == values[bag], jnp.arange(len(indices))[:, None], len(indices))
        first = jnp.full((bags, width), len(indices)).at[bag].min(place)  # of those that are equal
        values = jnp.where(sizes[:, None] > 0, values, 0)
        largest = jnp.where(sizes[:, None] > 0, jnp.take(indices, first, mode="fill", fill_value=0), 0)
    else:
        if per_sample_weights is not None:
            rows *= per_sample_weights[:, None].astype(jnp.float32)
        values = jnp.zeros((bags, width)).at[bag].add(jnp.where(counts_at[:, None], rows, 0))
        if mode == _MEAN:
            values /= jnp.maximum(sizes, 1)[:, None]
        else:
            sizes = jnp.zeros_like(sizes)  # as PyTorch's, which does not count for a sum
        largest = sizes
    # Which of the rest has values depends on the device that PyTorch traces for.
    rest = [x[: like.shape[0]] for x, like in zip((bag, sizes, largest.astype(jnp.int32)), others, strict=True)]
    return [values.astype(weight.dtype), *rest]


@lowers(aten._embedding_bag_backward.default, context=True)
def embedding_bag_backward(
    ctx: Context,
    grad: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    if sparse:
        raise LoweringError("an embedding bag with a sparse gradient has no lowering to XLA")
    bags, width = grad.shape
    wide = grad.astype(jnp.float32)
    if mode == _MAX:
        wide = jnp.where(bag_size[:, None] > 0, wide, 0)
        total = jnp.zeros((num_weights, width)).at[maximum_indices, jnp.arange(width)].add(wide, mode="drop")
        return total.astype(result_dtype(ctx))
    bag = _bag_of(indices, offsets, bags)
    rows = jnp.where(_counted(indices, bag, padding_idx)[:, None], wide[bag], 0)
    if mode == _MEAN:
        rows /= jnp.maximum(bag_size, 1)[bag][:, None]
    if per_sample_weights is not None:
        rows *= per_sample_weights[:, None].astype(jnp.float32)
    total = embedding_dense_backward(rows, indices, num_weights, padding_idx, scale_grad_by_freq)
    return total.astype(result_dtype(ctx))


@lowers(aten._embedding_bag_per_sample_weights_backward.default)
def per_sample_weights_backward(
    grad: jax.Array,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    mode: int,
    padding_idx: int = -1,
) -> jax.Array:
    bag = _bag_of(indices, offsets, grad.shape[0])
    products = grad[bag].astype(jnp.float32) * jnp.take(weight, indices, axis=0, mode="clip").astype(jnp.float32)
    return jnp.where(_counted(indices, bag, padding_idx), jnp.sum(products, -1), 0).astype(grad.dtype)


def _bag_of(indices: jax.Array, offsets: jax.Array, bags: int) -> jax.Array:
    """int32[indices]: the bag of each index; bags start at their offsets, one that is empty where the next one does."""
    return jnp.searchsorted(offsets[:bags], jnp.arange(len(indices)), side="right").astype(jnp.int32) - 1


def _counted(indices: jax.Array, bag: jax.Array, padding_idx: int) -> jax.Array:
    return (indices != padding_idx) & (bag >= 0)
