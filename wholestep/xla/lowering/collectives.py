"""Collectives over a named mesh axis."""

from __future__ import annotations

import jax
import torch
from jax import lax

from wholestep.errors import LoweringError
from wholestep.graph.collectives import GROUP, axis_of
from wholestep.xla.lowering.registry import Context, lowers

c10d = torch.ops._c10d_functional


@lowers(GROUP, context=True)
def process_group(ctx: Context, mesh: object, dim: int) -> str:
    return axis_of(ctx.node)


@lowers(c10d.wait_tensor.default)
def wait_tensor(x: jax.Array) -> jax.Array:
    return x


@lowers(c10d.all_gather_into_tensor.default)
def all_gather(x: jax.Array, size: int, axis: str) -> jax.Array:
    return lax.all_gather(x, axis, tiled=True)


@lowers(c10d.reduce_scatter_tensor.default)
def reduce_scatter(x: jax.Array, reduction: str, size: int, axis: str) -> jax.Array:
    if reduction != "sum":
        raise LoweringError(f"reduce_scatter with {reduction!r} has no lowering to XLA yet")
    return lax.psum_scatter(x, axis, tiled=True)


@lowers(c10d.all_reduce.default)
def all_reduce(x: jax.Array, reduction: str, axis: str) -> jax.Array:
    reductions = {"sum": lax.psum, "avg": lax.pmean, "max": lax.pmax, "min": lax.pmin}
    return reductions[reduction](x, axis)
