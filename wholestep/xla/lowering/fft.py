"""Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch

from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten

# PyTorch's numbers for how much of the transform's size is divided out -> JAX's names, forwards and back.
_FORWARD = ("backward", "ortho", "forward")
_BACK = ("forward", "ortho", "backward")


@lowers(aten._fft_r2c.default)
def real_to_complex(x: jax.Array, dim: Sequence[int], normalization: int, onesided: bool) -> jax.Array:
    transform = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return transform(x, axes=dim, norm=_FORWARD[normalization])


@lowers(aten._fft_c2c.default)
def complex_to_complex(x: jax.Array, dim: Sequence[int], normalization: int, forward: bool) -> jax.Array:
    if not dim:
        return x
    if forward:
        return jnp.fft.fftn(x, axes=dim, norm=_FORWARD[normalization])
    return jnp.fft.ifftn(x, axes=dim, norm=_BACK[normalization])


@lowers(aten._fft_c2r.default)
def complex_to_real(x: jax.Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> jax.Array:
    sizes = [*(x.shape[d] for d in dim[:-1]), last_dim_size]
    return jnp.fft.irfftn(x, sizes, dim, norm=_BACK[normalization])
