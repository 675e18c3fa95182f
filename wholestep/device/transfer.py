"""Tensors of PyTorch as arrays of JAX, and back."""

from __future__ import annotations

import jax
import numpy as np
import torch
from torch import Tensor

from wholestep.xla.dtypes import carried

_NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32, torch.complex128: torch.complex64}


def to_jax(tensor: Tensor, name: str = "a tensor") -> jax.Array:
    """What a program reads for `tensor`. A contiguous CPU tensor of at most 32 bits is not copied: nobody may write
    into it while the program runs.

    Args:
        name: of the tensor, in errors.

    Raises:
        LoweringError: XLA has no such dtype.
        ValueError: a value does not fit the 32 bits that programs carry.
    """
    carried(tensor.dtype)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype in _NARROWED:
        tensor = _narrow(tensor, name)
    return jax.dlpack.from_dlpack(tensor.contiguous())


def from_jax(array: jax.Array, dtype: torch.dtype) -> Tensor:
    """A program's result as a CPU tensor, contiguous. Waits for it: the program has read its inputs when this returns.

    Args:
        dtype: of the tensor; the array has the dtype that carries it.
    """
    assert array.dtype == carried(dtype), (array.dtype, dtype)
    array = jax.block_until_ready(array)
    on_cpu = all(device.platform == "cpu" for device in array.devices())
    tensor = torch.from_dlpack(array if on_cpu else jax.device_put(array, jax.devices("cpu")[0]))
    return tensor.to(dtype)


def draw_key() -> jax.Array:
    """A key for a program that draws random numbers, from PyTorch's generator of the CPU: `torch.manual_seed` decides
    what it is, and each call moves on to the next."""
    words = torch.randint(2**32, (2,), device="cpu")
    return jax.random.wrap_key_data(words.numpy().astype(np.uint32), impl="threefry2x32")


def _narrow(tensor: Tensor, name: str) -> Tensor:
    narrow = tensor.to(_NARROWED[tensor.dtype])
    fits = narrow == tensor if tensor.dtype == torch.int64 else narrow.isfinite() == tensor.isfinite()
    if not fits.all():
        raise ValueError(f"{name}: a value does not fit {narrow.dtype}, in which programs carry {tensor.dtype}")
    return narrow
