"""CPU tensors as arrays of JAX, and back."""

from __future__ import annotations

import pytest
import torch

from wholestep.device.transfer import from_jax, to_jax
from wholestep.errors import LoweringError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_transfer_does_not_copy(dtype: torch.dtype) -> None:
    tensor = torch.ones(64, 3, dtype=dtype)
    array = to_jax(tensor)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    assert from_jax(array, dtype).data_ptr() == tensor.data_ptr()


def test_transfer_of_all_kinds_of_tensors() -> None:
    base = torch.randn(6, 5)
    for tensor in (base, base.t(), base[1:, 2:], base.expand(2, 6, 5), base[:0], base[0, 0], base.to(torch.int64)):
        torch.testing.assert_close(from_jax(to_jax(tensor), tensor.dtype), tensor)
    with pytest.raises(LoweringError, match="no XLA dtype"):
        to_jax(torch.zeros(3, dtype=torch.uint64))
