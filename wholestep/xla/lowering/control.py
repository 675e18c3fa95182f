"""Loops, calls and tuples."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from torch import fx

from wholestep.graph.call import call, fence
from wholestep.graph.random import Scope, draws_numbers
from wholestep.graph.scan import loop
from wholestep.xla.lowering.registry import Context, lowers

lowers(operator.getitem)(operator.getitem)


@lowers(loop, context=True)
def lower_loop(
    ctx: Context,
    body: fx.GraphModule,
    carry: Sequence[jax.Array],
    xs: Sequence[jax.Array],
    consts: Sequence[jax.Array],
    reverse: bool = False,
    rows: bool = False,
    scope: Scope | None = None,
    period: int = 1,
) -> list[jax.Array]:
    trips = xs[0].shape[0]
    numbered = [jnp.arange(trips)] if draws_numbers(body) else []  # only where an iteration must know which it is

    def iteration(carried: Any, x: Any) -> Any:
        trip = x[: len(numbered)]
        if not trip:
            draws = ctx.draws
        elif rows:
            draws = ctx.draws.of_part(trip[0], trips)
        else:
            assert scope is not None, "a loop whose body draws says over what it runs"
            container, first = scope
            draws = ctx.draws.of_layers(container, first + period * trip[0])
        results = ctx.run(body, *carried, *x[len(numbered) :], *consts, draws=draws)
        return results[: len(carry)], results[len(carry) :]

    last, ys = lax.scan(iteration, list(carry), [*numbered, *xs], reverse=reverse)
    return [*last, *ys]


@lowers(call, context=True)
def lower_call(
    ctx: Context, body: fx.GraphModule, inputs: Sequence[jax.Array], scope: Scope | None = None
) -> list[jax.Array]:
    draws = ctx.draws.of_layers(*scope) if scope is not None else ctx.draws
    return ctx.run(body, *inputs, draws=draws)


@lowers(fence)
def lower_fence(values: Sequence[jax.Array]) -> list[jax.Array]:
    return list(lax.optimization_barrier(tuple(values)))
