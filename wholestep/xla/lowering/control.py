"""Loops and tuples."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from torch import fx

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
) -> list[jax.Array]:
    def iteration(carried: Any, x: Any) -> Any:
        results = ctx.run(body, *carried, *x, *consts)
        return results[: len(carry)], results[len(carry) :]

    last, ys = lax.scan(iteration, list(carry), list(xs), reverse=reverse)
    return [*last, *ys]
