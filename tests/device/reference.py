"""The CPU as the reference of what a `tpu` tensor means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from support import TOLERANCE, relative_error
from torch import Tensor
from torch.utils._pytree import tree_leaves


def numbers(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """Distinct small values, the same on every device."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 % 23 - 9) / 4).reshape(shape).to(dtype).clone().to(device)


def assert_same(got: Any, wanted: Any) -> None:
    """Alike in value, dtype, sizes, strides, offset, and what autograd knows of them; plain values equal."""
    got, wanted = tree_leaves(got), tree_leaves(wanted)
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        if not isinstance(other, Tensor):
            assert one == other
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if other.numel() > 1:
            assert one.stride() == other.stride()
        assert one.storage_offset() == other.storage_offset()
        assert (one.requires_grad, one.is_leaf, one._is_view()) == (
            other.requires_grad,
            other.is_leaf,
            other._is_view(),
        )
        assert_close(one, other)


def assert_close(got: Tensor, wanted: Tensor) -> None:
    """The same values but for rounding."""
    got, wanted = got.detach().cpu(), wanted.detach().cpu()
    if wanted.dtype.is_floating_point or wanted.dtype.is_complex:
        narrowest = torch.bfloat16 if wanted.dtype.itemsize == 2 else torch.float32
        wide = torch.complex128 if wanted.dtype.is_complex else torch.float64
        error = relative_error(got.to(wide).numpy(), wanted.to(wide).numpy())
        assert error <= TOLERANCE[narrowest], (error, got, wanted)
    else:
        assert torch.equal(got, wanted), (got, wanted)


def same_on_both(function: Callable[[str], Any]) -> None:
    """`function(device)` gives on `tpu` what it does on the CPU, or raises an error of the same type."""
    try:
        wanted = function("cpu")
    except Exception as error:
        try:
            got = function("tpu")
        except type(error):
            return
        raise AssertionError(f"the CPU raises {error!r}, tpu returns {got}") from error
    assert_same(function("tpu"), wanted)
