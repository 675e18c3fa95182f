"""Convolutions of any number of dimensions, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.lowering.matmul import precision
from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten


@lowers(aten.convolution.default)
def convolution(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> jax.Array:
    convolve = _transposed if transposed else _direct
    result = convolve(x, weight, stride, padding, dilation, output_padding, groups)
    return result if bias is None else result + bias.reshape(-1, *[1] * (x.ndim - 2))


@lowers(aten.convolution_backward.default)
def convolution_backward(
    grad: jax.Array,
    x: jax.Array,
    weight: jax.Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> list[jax.Array | None]:
    convolve = _transposed if transposed else _direct
    _, backward = jax.vjp(lambda x, w: convolve(x, w, stride, padding, dilation, output_padding, groups), x, weight)
    grads = [*backward(grad), jnp.sum(grad, (0, *range(2, grad.ndim)))]
    return [grad if wanted else None for grad, wanted in zip(grads, output_mask, strict=True)]


def _direct(
    x: jax.Array,
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> jax.Array:
    dims = x.ndim - 2
    return lax.conv_general_dilated(
        x,
        weight,
        _each(stride, dims),
        [(each, each) for each in _each(padding, dims)],
        rhs_dilation=_each(dilation, dims),
        feature_group_count=groups,
        precision=precision(),
    )


def _transposed(
    x: jax.Array,
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> jax.Array:
    """A convolution of the input spread out by the stride, with the kernel turned around."""
    dims = x.ndim - 2
    dilation = _each(dilation, dims)
    reach = [by * (size - 1) for by, size in zip(dilation, weight.shape[2:], strict=True)]
    cut = _each(padding, dims)
    added = _each(output_padding, dims)
    # The weight is [in, out / groups, ...]; a group's inputs and outputs change places.
    grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    kernel = jnp.swapaxes(grouped, 1, 2).reshape(-1, weight.shape[0] // groups, *weight.shape[2:])
    return lax.conv_general_dilated(
        x,
        jnp.flip(kernel, range(2, kernel.ndim)),
        [1] * dims,
        [(r - c, r - c + a) for r, c, a in zip(reach, cut, added, strict=True)],
        lhs_dilation=_each(stride, dims),
        rhs_dilation=dilation,
        feature_group_count=groups,
        precision=precision(),
    )


def _each(values: Sequence[int], dims: int) -> list[int]:
    """One value for each dimension, where PyTorch lets one stand for all."""
    return list(values) * dims if len(values) == 1 else list(values)
