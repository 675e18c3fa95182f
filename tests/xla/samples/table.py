"""What the samples of lowerings are made of; the files beside this one are the samples, by family.

A row is the operator and its arguments. What PyTorch gives for them is what the lowering must give: value, shape and
dtype. A row with `reference` compares with that function instead, where PyTorch's own has no CPU kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
inf, nan, LAST = math.inf, math.nan, 2**63 - 1
_generator = torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class Sample:
    """One call of an operator; `values` is False where PyTorch leaves the result's values open."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reference: Callable[..., Any]
    values: bool = True


def row(target: Any, *args: Any, reference: Callable[..., Any] | None = None, **kwargs: Any) -> Sample:
    return Sample(target, args, kwargs, reference or target)


def f32(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_generator)


def bf16(*shape: int) -> Tensor:
    return f32(*shape).bfloat16()


def f16(*shape: int) -> Tensor:
    return f32(*shape).half()


def i64(*shape: int, low: int = -4, high: int = 5) -> Tensor:
    return torch.randint(low, high, shape, generator=_generator)


def flags(*shape: int) -> Tensor:
    return i64(*shape) > 0


def c64(*shape: int) -> Tensor:
    return torch.complex(f32(*shape), f32(*shape))


def definite(make: Callable[..., Tensor], *shape: int) -> Tensor:
    """Positive definite matrices."""
    x = make(*shape)
    return x @ x.mH + torch.eye(shape[-1])


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan])
# Without ties, among which PyTorch leaves the order open.
DISTINCT = torch.randperm(20, generator=_generator).view(4, 5).float() / 4 - 2
PROBABLE = torch.log_softmax(f32(5, 7), -1)
SPREAD = f32(4, 5)
LABELS = torch.tensor([3, 0, -100, 6, -100])
IGNORED = torch.full((5,), -100)
CLASS_WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.0, 3.0, 1.5, 0.25])
INDICES = torch.tensor([[3, 0, 3], [1, 3, 0]])
# Each place along the first dimension of [3, 4] more than once, some never.
PLACES = torch.tensor([[0, 1, 2, 0], [0, 1, 1, 2]])
ENDS = torch.tensor([3, 0, 3])
MASK = torch.tensor([[True, False, True, False], [False] * 4, [True, True, False, True]])
WITH_NAN = torch.where(torch.arange(20).view(4, 5) % 7 == 3, nan, DISTINCT)
EDGES = torch.tensor([-1.0, 0.0, 0.5, 2.0])

BAGS = (torch.tensor([3, 0, 3, 1, 4, 4, 2]), torch.tensor([0, 2, 5, 5]))
BAG_OF, BAG_SIZES = torch.tensor([0, 0, 1, 1, 1, 3, 3]), torch.tensor([2, 3, 0, 2])
MANY_LABELS = torch.tensor([[2, 0, -1, 1], [-1, 3, 0, 2]])


def operator_named(name: str, overload: str = "default") -> Any:
    return getattr(getattr(aten, name), overload)
