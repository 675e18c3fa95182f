"""The table of lowerings: ATen operator -> JAX function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import torch
from torch import fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from wholestep.xla.draws import Draws
from wholestep.xla.dtypes import carried


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


def elementwise(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `lowers`, for element-wise operators: arguments come promoted by PyTorch's rules, which differ from JAX's
    (a 0-d tensor does not widen a tensor with dimensions, an integer divided is a default float)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def of_promoted(ctx: Context, *args: Any, **kwargs: Any) -> Any:
            result = function(*promoted(ctx, *args), **kwargs)
            if getattr(result, "dtype", None) == jnp.float32 and result_dtype(ctx) == jnp.float16:
                return result.astype(jnp.float16)
            return result

        lowers(*targets, context=True)(of_promoted)
        return function

    return register


def promoted(ctx: Context, *args: Any) -> list[Any]:
    """The node's arguments, arrays in the dtype in which they meet; in fp32 where fp16 meets a number, which may be one
    that fp16 does not hold: PyTorch computes in fp32 then, and rounds the result."""
    dtype = _computation_dtype(ctx.node)
    if dtype == jnp.float16 and any(map(_is_number, args)):
        dtype = jnp.dtype(jnp.float32)
    return [arg.astype(dtype) if isinstance(arg, jax.Array) else arg for arg in args]


def _is_number(x: Any) -> bool:
    if isinstance(x, jax.Array):
        return x.ndim == 0 and x.dtype == jnp.float32
    return isinstance(x, (int, float)) and not isinstance(x, bool)


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
