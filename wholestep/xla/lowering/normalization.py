"""Normalization over groups."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.dtypes import carried
from wholestep.xla.lowering.registry import Context, lowers

aten = torch.ops.aten


@lowers(aten.native_group_norm.default, context=True)
def group_norm(
    ctx: Context,
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    batch: int,
    channels: int,
    places: int,
    groups: int,
    eps: float,
) -> list[jax.Array]:
    """Not PyTorch's decomposition: that subtracts the mean after scaling, in which digits cancel."""
    grouped = x.astype(jnp.float32).reshape(batch, groups, channels // groups * places)
    mean = jnp.mean(grouped, -1)
    centered = grouped - mean[..., None]
    rstd = lax.rsqrt(jnp.mean(jnp.square(centered), -1) + eps)
    result = (centered * rstd[..., None]).reshape(x.shape)
    per_channel = (channels, *[1] * (x.ndim - 2))
    if weight is not None:
        result *= weight.reshape(per_channel).astype(jnp.float32)
    if bias is not None:
        result += bias.reshape(per_channel).astype(jnp.float32)
    dtypes = [carried(each.dtype) for each in ctx.node.meta["val"]]
    return [each.astype(dtype) for each, dtype in zip((result, mean, rstd), dtypes, strict=True)]
