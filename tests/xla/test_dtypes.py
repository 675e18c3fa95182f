"""How torch dtypes are carried, and what does not fit."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from wholestep.errors import LoweringError
from wholestep.xla.dtypes import carried, to_program


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.int64, np.int32),
        (torch.float64, np.float32),
        (torch.float32, np.float32),
        (torch.bfloat16, jnp.bfloat16),
        (torch.bool, np.bool_),
        (torch.uint8, np.uint8),
        (torch.complex64, np.complex64),
        (torch.complex128, np.complex64),
    ],
)
def test_carried(dtype: torch.dtype, expected: type) -> None:
    assert carried(dtype) == np.dtype(expected)


def test_a_dtype_that_xla_does_not_have() -> None:
    with pytest.raises(LoweringError, match=r"torch\.complex32 has no XLA dtype; known are torch\.float64"):
        carried(torch.complex32)


def test_values_that_fit_are_converted() -> None:
    limits = np.asarray([-(2**31), 2**31 - 1])
    result = to_program("tokens", limits, torch.int64)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, limits)


def test_a_value_in_its_dtype_is_not_copied() -> None:
    value = np.zeros(3, np.float32)
    assert to_program("x", value, torch.float32) is value


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_an_integer_that_does_not_fit(value: int) -> None:
    with pytest.raises(ValueError, match=r"tokens: a value does not fit int32, in which .* carries torch\.int64"):
        to_program("tokens", np.asarray([0, value]), torch.int64)


def test_a_float_for_an_integer() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        to_program("tokens", np.asarray([0.5]), torch.int64)
