"""How torch dtypes are carried in an XLA program."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch

from wholestep.errors import LoweringError

# 64-bit types are carried in 32 bits, as is usual on TPU; `to_program` raises for a value that does not fit.
_CARRIED = {
    torch.float64: jnp.float32,
    torch.float32: jnp.float32,
    torch.bfloat16: jnp.bfloat16,
    torch.float16: jnp.float16,
    torch.int64: jnp.int32,
    torch.int32: jnp.int32,
    torch.int16: jnp.int16,
    torch.int8: jnp.int8,
    torch.uint8: jnp.uint8,
    torch.uint32: jnp.uint32,
    torch.bool: jnp.bool_,
    torch.complex128: jnp.complex64,
    torch.complex64: jnp.complex64,
}


def carried(dtype: torch.dtype) -> np.dtype:
    """The dtype that the program carries a torch dtype in.

    Raises:
        LoweringError: XLA has no such dtype.
    """
    if dtype not in _CARRIED:
        raise LoweringError(f"{dtype} has no XLA dtype; known are {', '.join(map(str, _CARRIED))}")
    return np.dtype(_CARRIED[dtype])


def to_program(name: str, value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """`value` in the dtype that the program carries `dtype` in.

    Raises:
        ValueError: an integer does not fit.
    """
    target = carried(dtype)
    if value.dtype == target:
        return value
    converted = value.astype(target)
    if np.issubdtype(target, np.integer) and not np.array_equal(converted, value):
        raise ValueError(f"{name}: a value does not fit {target}, in which the program carries {dtype}")
    return converted
