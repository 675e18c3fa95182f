"""Distances between all pairs of rows."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch

from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten


@lowers(aten._cdist_forward.default)
def cdist(x: jax.Array, y: jax.Array, p: float, compute_mode: int | None) -> jax.Array:
    absolute = jnp.abs(x[..., :, None, :] - y[..., None, :, :])
    if p == 0:
        return jnp.sum(absolute != 0, -1).astype(x.dtype)
    if p == 1:
        return jnp.sum(absolute, -1)
    if p == 2:
        return jnp.sqrt(jnp.sum(jnp.square(absolute), -1))
    if math.isinf(p):
        return jnp.max(absolute, -1, initial=0)
    return jnp.sum(absolute**p, -1) ** (1 / p)


@lowers(aten._pdist_forward.default)
def pdist(x: jax.Array, p: float = 2) -> jax.Array:
    """Each pair once, in the order of its first row and then its second."""
    first, second = np.triu_indices(x.shape[0], 1)
    return cdist(x, x, p, None)[first, second]


@lowers(aten._pdist_backward.default)
def pdist_backward(grad: jax.Array, x: jax.Array, p: float, distance: jax.Array) -> jax.Array:
    pairs = np.triu_indices(x.shape[0], 1)

    def of_both_orders(each: jax.Array) -> jax.Array:
        once = jnp.zeros((x.shape[0], x.shape[0]), x.dtype).at[pairs].set(each)
        return once + once.T

    return cdist_backward(of_both_orders(grad), x, x, p, of_both_orders(distance))


@lowers(aten._cdist_backward.default)
def cdist_backward(grad: jax.Array, x: jax.Array, y: jax.Array, p: float, distance: jax.Array) -> jax.Array:
    """Of `x`. Where a distance is 0 it has no gradient; PyTorch's is 0."""
    difference = x[..., :, None, :] - y[..., None, :, :]
    if not difference.size:
        return jnp.zeros_like(x)
    grad, distance = grad[..., None], distance[..., None]
    apart = jnp.where(distance == 0, 1, distance)
    if p == 0:
        each = jnp.zeros_like(difference)
    elif p == 1:
        each = jnp.sign(difference)
    elif p == 2:
        each = difference / apart
    elif math.isinf(p):
        each = jnp.sign(difference) * (jnp.abs(difference) == distance)
    else:
        absolute = jnp.where(difference == 0, 1, jnp.abs(difference))
        each = jnp.sign(difference) * (absolute / apart) ** (p - 1)
    return jnp.sum(jnp.where(distance == 0, 0, grad * each), -2)
