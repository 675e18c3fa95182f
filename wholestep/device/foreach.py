"""Operators on lists of tensors, as optimizers call them: all of a list is one program.

PyTorch composes them of calls of an operator each, which costs as many programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from wholestep.device.scalars import scaled_difference, scaled_product, scaled_quotient, scaled_sum, weighted_mean
from wholestep.graph.foreach import each, of_elements

# Computed of elements as in graphs.
_PLAIN = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma"),
    *("log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh"),
    *("sqrt", "tan", "tanh", "trunc", "mul", "div", "pow", "maximum", "minimum", "clamp_min", "clamp_max"),
    *("norm", "zero"),
)


# What is computed of the elements of the lists. Numbers come as tensors without dimensions where `NUMBERS` has them.
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name: function for name in _PLAIN if (function := of_elements(name)) is not None},
    "add": lambda x, y, alpha=None: x + y if alpha is None else scaled_sum(x, y, alpha),
    "sub": lambda x, y, alpha=None: x - y if alpha is None else scaled_difference(x, y, alpha),
    "addcmul": lambda x, a, b, value=None: torch.addcmul(x, a, b) if value is None else scaled_product(x, a, b, value),
    "addcdiv": lambda x, a, b, value=None: torch.addcdiv(x, a, b) if value is None else scaled_quotient(x, a, b, value),
    "lerp": weighted_mean,
}

NUMBERS = {
    **dict.fromkeys(("add", "sub", "mul", "div"), ("scalar", "scalars", "alpha")),
    **dict.fromkeys(("addcmul", "addcdiv"), ("value", "scalars")),
    "lerp": ("weight",),
}
"""Arguments whose numbers change from step to step, by what is computed."""


def names() -> Iterator[str]:
    """The operators, `_foreach_add_.Scalar`, that are computed so."""
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CompositeExplicitAutograd"):
        packet, _, overload = name.removeprefix("aten::").partition(".")
        base = packet.removeprefix("_foreach_").removesuffix("_")
        known = packet.startswith("_foreach_") and base in _FUNCTIONS and not overload.endswith("out")
        # One tensor that holds a number for each element is not taken apart here.
        if known and (base, overload) not in {("addcmul", "Tensor"), ("addcdiv", "Tensor")}:
            yield name.removeprefix("aten::")


def base_of(operator: torch._ops.OpOverload) -> str | None:
    """What the operator computes of each element; None if it is none of these."""
    name = operator._schema.name.removeprefix("aten::")
    base = name.removeprefix("_foreach_").removesuffix("_")
    return base if name.startswith("_foreach_") and base in _FUNCTIONS else None


def over_lists(operator: torch._ops.OpOverload) -> Callable[..., list[Tensor] | None]:
    """What computes the operator: `function(*lists and others)`, writing into the first list if the operator does."""
    base, writes = base_of(operator), operator._schema.is_mutable
    assert base is not None
    function = _FUNCTIONS[base]

    def compute(*args: Any, **kwargs: Any) -> list[Tensor] | None:
        results = each(function, operator, *args, **kwargs)
        if not writes:
            return results
        for target, value in zip(args[0], results, strict=True):
            _write(operator, target, value)
        return None

    return compute


def _write(operator: torch._ops.OpOverload, target: Tensor, value: Tensor) -> None:
    if not torch.can_cast(value.dtype, target.dtype):
        raise RuntimeError(f"{operator}: result type {value.dtype} can't be cast to {target.dtype}")
    target.copy_(value)
