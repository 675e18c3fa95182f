"""The table of lowerings: ATen operator -> JAX function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from wholestep.xla.draws import Draws
from wholestep.xla.dtypes import carried

HALVES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))
"""Floats of 16 bits: PyTorch computes with them in fp32, and rounds what an operator results in."""


class Context(Protocol):
    """What a lowering may ask about the node it lowers and the program around it.

    Attributes:
        node: what is lowered.
        draws: where its random numbers come from.
    """

    node: fx.Node
    draws: Draws

    def run(self, module: fx.GraphModule, *args: jax.Array, draws: Draws) -> list[jax.Array]:
        """Lower another graph in place, as a loop does with its body."""


@dataclass(frozen=True)
class Lowering:
    """A JAX function of a node's arguments, tensors being arrays; with `needs_context`, of a `Context` before them."""

    function: Callable[..., Any]
    needs_context: bool


LOWERINGS: dict[Any, Lowering] = {}


def lowers(*targets: Any, context: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated JAX function for these operators.

    Raises:
        ValueError: an operator has a lowering already.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for target in targets:
            if target in LOWERINGS:
                raise ValueError(f"{target} has a lowering already: {LOWERINGS[target].function}")
            LOWERINGS[target] = Lowering(function, context)
        return function

    return register


def elementwise(*targets: Any, exact_number: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `lowers`, for element-wise operators: arguments come promoted by PyTorch's rules, which differ from JAX's
    (a 0-d tensor does not widen a tensor with dimensions, an integer divided is a default float).

    Args:
        exact_number: whether the operator takes a second operand without dimensions as it is, as products and
            quotients of 16-bit floats do, and does not round it to their dtype first, as all others do.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def of_promoted(ctx: Context, *args: Any, **kwargs: Any) -> Any:
            result = function(*promoted(ctx, *args, exact_number=exact_number), **kwargs)
            return result.astype(result_dtype(ctx)) if exact_number else result

        lowers(*targets, context=True)(of_promoted)
        return function

    return register


def promoted(ctx: Context, *args: Any, exact_number: bool = False) -> list[Any]:
    """The node's arguments, arrays in the dtype in which they meet; see `elementwise`."""
    dtype = _computation_dtype(ctx.node)
    if exact_number and dtype in HALVES and not _holds(dtype, args[1]):
        dtype = jnp.dtype(jnp.float32)
    return [cast(arg, dtype) if isinstance(arg, jax.Array) else _rounded(dtype, arg) for arg in args]


def cast(x: jax.Array, dtype: Any) -> jax.Array:
    """In another dtype. Booleans as a choice of 1 and 0: XLA takes a product with converted booleans for a choice
    between 0 and the other factor, and so hides what is no finite number."""
    if x.dtype == jnp.bool_ and jnp.issubdtype(dtype, jnp.inexact):
        return jnp.where(x, jnp.ones((), dtype), jnp.zeros((), dtype))
    return x.astype(dtype)


def _holds(dtype: Any, x: Any) -> bool:
    """Whether nothing is lost of a second operand in this dtype, as far as is known before it runs."""
    if isinstance(x, jax.Array):
        return x.ndim > 0 or x.dtype in HALVES or x.dtype.itemsize == 1
    return _rounded(dtype, x) == x


def _rounded(dtype: Any, x: Any) -> Any:
    """A number that 16 bits do not hold, rounded to them; anything else as it is."""
    if dtype not in HALVES or type(x) not in (int, float):
        return x
    with np.errstate(over="ignore"):
        rounded = float(np.float64(x).astype(dtype))
    return x if rounded == x else rounded


def result_dtype(ctx: Context) -> Any:
    """The dtype in which the program carries the node's result."""
    return carried(ctx.node.meta["val"].dtype)


def _computation_dtype(node: fx.Node) -> Any:
    """The dtype in which the node's operands meet."""
    operands = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in node.args]
    operands = [arg for arg in operands if isinstance(arg, (torch.Tensor, int, float, bool, complex))]
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    result = node.meta["val"].dtype
    _, met = elementwise_dtypes(*operands, type_promotion_kind=kind)
    exact = not (met.is_floating_point or met.is_complex)
    return carried(result if result.is_floating_point and exact else met)
