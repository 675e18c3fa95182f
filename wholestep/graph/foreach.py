"""Operators on lists of tensors, `torch._foreach_*`, as optimizers call them: taken apart into those of elements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def each(function: Callable[..., Tensor], name: object, *args: Any, **kwargs: Any) -> list[Tensor]:
    """`function` of the elements of those arguments that are lists, in turn; the others as they are.

    Raises:
        RuntimeError: lists of different lengths; `name` says of what.
    """
    lengths = {len(arg) for arg in args if isinstance(arg, (list, tuple))}
    if len(lengths) > 1:
        raise RuntimeError(f"{name}: lists of {' and '.join(map(str, sorted(lengths)))} elements")
    return [
        function(*(arg[i] if isinstance(arg, (list, tuple)) else arg for arg in args), **kwargs)
        for i in range(*lengths)
    ]


def _norm(x: Tensor, order: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    return torch.linalg.vector_norm(x, order, dtype=dtype)


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(x.dtype).expand_as(x).clone()


# Where the operator of an element has another name, or takes no numbers.
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "addcdiv": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
    "addcmul": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    "copy": _copy,
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "norm": _norm,
    "zero": torch.zeros_like,
}


def of_elements(base: str) -> Callable[..., Tensor] | None:
    """What `_foreach_{base}` computes of each element; None if there is no such operator."""
    return _FUNCTIONS.get(base) or getattr(torch, base, None)


def _rules() -> dict[Any, Callable[..., Any]]:
    rules: dict[Any, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CompositeExplicitAutograd"):
        packet, _, overload = name.removeprefix("aten::").partition(".")
        base = packet.removeprefix("_foreach_")
        function = of_elements(base)
        if not packet.startswith("_foreach_") or function is None:
            continue
        operator = getattr(getattr(aten, packet), overload or "default")
        # A tensor that holds a number for each element is not taken apart here.
        scalars = any(argument.name == "scalars" for argument in operator._schema.arguments)
        if not operator._schema.is_mutable and not (scalars and overload == "Tensor"):
            rules[operator] = functools.partial(each, function, operator)
    return rules


DECOMPOSITIONS = _rules()
"""Operator -> what computes it."""
