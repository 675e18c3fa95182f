"""The operators that graphs are made without, and PyTorch's rules that take their place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from wholestep.graph.linear_algebra import DECOMPOSITIONS as LINEAR_ALGEBRA
from wholestep.graph.random import DECOMPOSITIONS as RANDOM

aten = torch.ops.aten

# Operators that PyTorch would decompose into something that XLA runs worse than a direct lowering: the losses and
# the embedding's gradient would become scatters, a roll a gather.
_LOWERED_WHOLE = (
    aten.nll_loss_forward.default,
    aten.nll_loss_backward.default,
    aten.embedding_dense_backward.default,
    aten.roll.default,
)

# Operators that PyTorch does not decompose unless asked to, and well.
_DECOMPOSED = (aten.addmv, aten.linalg_vector_norm)


@functools.cache
def decompositions() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """Operator -> the function that computes it of others."""
    core = {op: rule for op, rule in core_aten_decompositions().items() if op not in _LOWERED_WHOLE}
    return core | get_decompositions(_DECOMPOSED) | LINEAR_ALGEBRA | RANDOM
