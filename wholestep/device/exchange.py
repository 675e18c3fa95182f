"""Tensors of the device as JAX's arrays, and back, without a copy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

from wholestep.device.buffer import buffer_of, over_array, view_of
from wholestep.device.dispatch import resolved
from wholestep.device.strides import take
from wholestep.errors import WholestepError
from wholestep.xla.dtypes import carried

_DTYPES = {
    jnp.dtype(carried(dtype)): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32),
        *(torch.float16, torch.bfloat16, torch.float32, torch.complex64),
    )
}


def to_jax(tensor: Tensor) -> jax.Array:
    """The array that a `tpu` tensor is: itself where the tensor is all of its storage, else a copy of this part.

    Neither sees what is written to the other: a tensor that is written into gets a new array. int64 comes as int32,
    float64 as float32, which is what programs carry.

    Raises:
        WholestepError: a tensor of another device.
    """
    if tensor.device.type != "tpu":
        raise WholestepError(f"wholestep.to_jax takes tpu tensors, got one on {tensor.device}; `.to('tpu')` moves it")
    tensor = resolved(tensor.detach())
    return take(buffer_of(tensor).array, view_of(tensor))


def from_jax(array: jax.Array) -> Tensor:
    """A `tpu` tensor over this array, which stays as it is when the tensor is written into.

    Raises:
        WholestepError: the array lies on several devices, or PyTorch has no such dtype.
    """
    if len(array.devices()) != 1:
        raise WholestepError(f"wholestep.from_jax takes an array on one device, got one on {len(array.devices())}")
    dtype = _DTYPES.get(array.dtype)
    if dtype is None:
        raise WholestepError(f"wholestep.from_jax: PyTorch tensors of the device have no dtype {array.dtype}")
    here = jax.device_put(array, jax.devices()[0])
    return over_array(here, dtype)
