"""The bits of an array as elements of another dtype."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.dtypes import carried


def is_reinterpreted(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether XLA makes elements of one of the other's: not of types that are carried by narrower ones, nor of bool."""
    return all(each is not torch.bool and carried(each).itemsize == each.itemsize for each in (dtype, other))


def reinterpreted(array: jax.Array, dtype: torch.dtype, other: torch.dtype) -> jax.Array | None:
    """The elements, in row-major order, as such of another dtype, `[n]`; what is left over at the end is filled up.
    None where XLA does not do it."""
    return _reinterpret(array, other) if is_reinterpreted(dtype, other) else None


@functools.partial(jax.jit, static_argnums=1)
def _reinterpret(array: jax.Array, dtype: torch.dtype) -> jax.Array:
    array = array.reshape(-1)
    if jnp.iscomplexobj(array):
        array = jnp.stack([array.real, array.imag], axis=-1).reshape(-1)
    wanted = jnp.dtype(jnp.float32) if dtype is torch.complex64 else jnp.dtype(carried(dtype))
    array = jnp.pad(array, (0, -array.size % max(dtype.itemsize // array.itemsize, 1)))
    if wanted.itemsize > array.itemsize:
        array = array.reshape(-1, wanted.itemsize // array.itemsize)
    array = lax.bitcast_convert_type(array, wanted).reshape(-1)
    return lax.complex(array[::2], array[1::2]) if dtype is torch.complex64 else array
