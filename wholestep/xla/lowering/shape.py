"""Operators that rearrange elements and compute none."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.errors import LoweringError
from wholestep.xla.blocks import with_block
from wholestep.xla.chips import chip_lowered_for
from wholestep.xla.lowering.registry import Context, lowers, result_dtype

aten = torch.ops.aten


@lowers(aten.view.default, aten._unsafe_view.default, context=True)
def view(ctx: Context, x: jax.Array, shape: Sequence[int]) -> jax.Array:
    return x.reshape(ctx.node.meta["val"].shape)  # the fake result knows what a -1 is


@lowers(aten.permute.default)
def permute(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return jnp.transpose(x, dims)


@lowers(aten.expand.default, context=True)
def expand(ctx: Context, x: jax.Array, shape: Sequence[int], implicit: bool = False) -> jax.Array:
    return jnp.broadcast_to(x, ctx.node.meta["val"].shape)


lowers(aten.repeat.default)(jnp.tile)


@lowers(aten.unsqueeze.default)
def unsqueeze(x: jax.Array, dim: int) -> jax.Array:
    return jnp.expand_dims(x, dim)


@lowers(aten.squeeze.dims, aten.squeeze.dim, aten.squeeze.default, context=True)
def squeeze(ctx: Context, x: jax.Array, *dims: object) -> jax.Array:
    return x.reshape(ctx.node.meta["val"].shape)


@lowers(aten.slice.Tensor)
def slice_(x: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> jax.Array:
    first, last, _ = slice(start, end).indices(x.shape[dim])
    return lax.slice_in_dim(x, first, max(first, last), step, dim)


@lowers(aten.select.int)
def select(x: jax.Array, dim: int, index: int) -> jax.Array:
    return lax.index_in_dim(x, index, dim, keepdims=False)


@lowers(aten.split_with_sizes.default)
def split_with_sizes(x: jax.Array, sizes: Sequence[int], dim: int = 0) -> list[jax.Array]:
    return lax.split(x, sizes, dim % x.ndim)


@lowers(aten.cat.default, context=True)
def cat(ctx: Context, tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    filled = [x for x in tensors if x.shape != (0,)] or tensors  # PyTorch lets an empty vector join anything
    return jnp.concatenate([x.astype(result_dtype(ctx)) for x in filled], dim)


_LANES = 128  # of a TPU's vectors


@lowers(aten.roll.default)
def roll(x: jax.Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> jax.Array:
    """On TPUs, bf16 lanes are rolled by the matrix unit, exactly: XLA would cut vectors up and write the pieces to
    memory. (There, one value that is not finite makes its vector NaN.)"""
    if not dims:
        return jnp.roll(x, shifts[0])
    if _rolls_lanes(x, dims) and chip_lowered_for() is not None:
        rolled = jnp.roll(jnp.eye(x.shape[-1], dtype=x.dtype), shifts[0], 1)
        return lax.dot_general(x, rolled, (((x.ndim - 1,), (0,)), ((), ())))
    return jnp.roll(x, tuple(shifts), tuple(dims))


def _rolls_lanes(x: jax.Array, dims: Sequence[int]) -> bool:
    return x.dtype == jnp.bfloat16 and [dim % x.ndim for dim in dims] == [x.ndim - 1] and x.shape[-1] <= _LANES


@lowers(aten.stack.default)
def stack(tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    return jnp.stack(tensors, dim)


@lowers(aten.unbind.int)
def unbind(x: jax.Array, dim: int = 0) -> list[jax.Array]:
    return [lax.index_in_dim(x, i, dim, keepdims=False) for i in range(x.shape[dim])]


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(x: jax.Array, pad: Sequence[int], value: float = 0) -> jax.Array:
    widths = [(0, 0, 0)] * x.ndim
    for i in range(len(pad) // 2):  # PyTorch lists the last dimension first
        widths[x.ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return lax.pad(x, jnp.asarray(value, x.dtype), widths)


@lowers(aten.slice_scatter.default)
def slice_scatter(
    x: jax.Array, source: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    starts, steps = [0] * x.ndim, [1] * x.ndim
    starts[dim], _, steps[dim] = slice(start, end, step).indices(x.shape[dim])
    return with_block(x, source.astype(x.dtype), starts, steps)


@lowers(aten.select_scatter.default)
def select_scatter(x: jax.Array, source: jax.Array, dim: int, index: int) -> jax.Array:
    starts = [0] * x.ndim
    starts[dim] = index % x.shape[dim]
    return with_block(x, jnp.expand_dims(source, dim), starts)


@lowers(aten.flip.default)
def flip(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return lax.rev(x, [dim % x.ndim for dim in dims]) if x.ndim else x


@lowers(aten.diagonal.default)
def diagonal(x: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    return jnp.diagonal(x, offset, dim1, dim2)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(x: jax.Array, source: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    last = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    steps = jnp.arange(source.shape[-1])
    written = last.at[..., steps + max(-offset, 0), steps + max(offset, 0)].set(source)
    return jnp.moveaxis(written, (-2, -1), (dim1, dim2))


@lowers(aten.unfold.default)
def unfold(x: jax.Array, dim: int, size: int, step: int) -> jax.Array:
    if not x.ndim:
        return x.reshape(1)[:size]
    axis = dim % x.ndim
    starts = jnp.arange(0, x.shape[axis] - size + 1, step)
    windows = jnp.take(x, starts[:, None] + jnp.arange(size), axis=axis, mode="clip")
    return jnp.moveaxis(windows, axis + 1, -1)


@lowers(aten.view.dtype, context=True)
def view_dtype(ctx: Context, x: jax.Array, dtype: torch.dtype) -> jax.Array:
    """Bits as they are; a 64-bit type has others in the program than in PyTorch."""
    before = ctx.node.args[0].meta["val"].dtype
    if before == dtype:
        return x
    if 8 in (before.itemsize, dtype.itemsize):
        raise LoweringError(f"{before} viewed as {dtype} has no lowering to XLA: 64-bit types are carried in 32 bits")
    if torch.bool in (before, dtype):
        byte = x.astype(jnp.uint8)
        return byte != 0 if dtype == torch.bool else lax.bitcast_convert_type(byte, result_dtype(ctx))
    target = result_dtype(ctx)
    ratio = target.itemsize // x.dtype.itemsize
    if ratio > 1:
        x = x.reshape(*x.shape[:-1], x.shape[-1] // ratio, ratio)
    return lax.bitcast_convert_type(x, target).reshape(ctx.node.meta["val"].shape)


@lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: jax.Array, *, output_size: int | None = None) -> jax.Array:
    return jnp.repeat(jnp.arange(repeats.shape[0], dtype=jnp.int32), repeats, total_repeat_length=output_size)
