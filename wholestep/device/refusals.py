"""Integers where PyTorch's kernels take floating-point numbers alone.

A program would compute: what it makes of a softmax of integers is integers. No other device says anything but an error.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_SAYS = re.compile(r"not implemented for|only supports? floating")

# Larger tensors are tried in a size at which nothing takes time.
_LARGE = 1 << 16


def check_integers(
    operator: torch._ops.OpOverload,
    call: Callable[[Sequence[Tensor]], Any],
    dtypes: Sequence[torch.dtype],
    sizes: Sequence[Sequence[int]],
) -> None:
    """Ask the CPU, by a call, whether an operator of PyTorch's takes these tensors, if all are of integers or booleans.

    Args:
        operator: for the error's text.
        call: calls it with CPU tensors in place of its own.
        dtypes: of its tensors.
        sizes: of its tensors.

    Raises:
        NotImplementedError: it does not.
    """
    if (
        operator.namespace != "aten"
        or any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)
        or not dtypes
    ):
        return
    if sum(map(math.prod, sizes)) > _LARGE:
        sizes = [[min(n, 2) for n in size] for size in sizes]
    tensors = [torch.ones(tuple(size), dtype=dtype) for size, dtype in zip(sizes, dtypes, strict=True)]
    refusal = ""
    # What else it finds wrong with ones, or with these sizes, is nobody's.
    with contextlib.suppress(Exception), torch.random.fork_rng(devices=[]):
        try:
            call(tensors)
        except (NotImplementedError, RuntimeError) as error:
            refusal = str(error)
    if _SAYS.search(refusal):
        raise NotImplementedError(f"{operator} of {dtypes[0]}: {refusal}; convert it, as by x.float()")
