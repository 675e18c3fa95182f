"""The loop of a step graph: one body, run once for each slice of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode
from torch.utils._pytree import tree_leaves

from wholestep.graph.random import Scope
from wholestep.graph.trace import record, trace_body

Body = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]]
"""`(carry, x, consts) -> (carry, y)`."""


def scan(
    body: Body, carry: Sequence[Tensor], xs: Sequence[Tensor], consts: Sequence[Tensor] = (), rows: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Run `body(carry, x, consts) -> (carry, y)` for each slice `x` of `xs` along their first dimension.

    While a step is traced, the body is traced once and the loop becomes one node, a call of `loop`, which is lowered
    to one XLA loop.

    Args:
        body: reads no tensors but its arguments.
        carry: what an iteration hands to the next; shapes and dtypes do not change.
        xs: at least one tensor, all of one leading size, the number of iterations.
        consts: what every iteration reads.
        rows: whether the slices are parts of a batch, whose rows draw random numbers of their own.

    Returns:
        The last carry, and each `y` stacked along a new first dimension.
    """

    def flat_body(*tensors: Tensor) -> list[Tensor]:
        given = list(tensors)
        new_carry, y = body(
            given[: len(carry)], given[len(carry) : len(carry) + len(xs)], given[len(carry) + len(xs) :]
        )
        assert len(new_carry) == len(carry), (
            f"the body was given {len(carry)} carried tensors and returned {len(new_carry)}"
        )
        return [*new_carry, *y]

    mode = get_proxy_mode()
    run = loop if mode is None else _record
    results = run(flat_body, list(carry), list(xs), list(consts), rows=rows)
    return list(results[: len(carry)]), list(results[len(carry) :])


def loop(
    body: Callable[..., Sequence[Tensor]],
    carry: Sequence[Tensor],
    xs: Sequence[Tensor],
    consts: Sequence[Tensor],
    reverse: bool = False,
    rows: bool = False,
    scope: Scope | None = None,
    period: int = 1,
) -> tuple[Tensor, ...]:
    """What a loop node calls: `body(*carry, *x, *consts) -> (*carry, *y)`. Returns the last carry, then the stacked
    `y`; with `reverse`, the last slice of `xs` comes first, and a `y` stands where its `x` did. On plain tensors it
    runs the loop, so that a step graph also runs in PyTorch.

    `rows`, `scope` and `period` say what random draws in the body depend on: the rows that an iteration works on, or
    the layers, `period` of them an iteration, the first at `scope`."""
    carry = list(carry)
    ys: list[Sequence[Tensor]] = []
    trips = range(len(xs[0]))
    for i in reversed(trips) if reverse else trips:
        results = body(*carry, *(x[i] for x in xs), *consts)
        carry = list(results[: len(carry)])
        ys.append(results[len(carry) :])
    if reverse:
        ys.reverse()
    return (*carry, *(torch.stack(column) for column in zip(*ys, strict=True)))


def _record(
    body: Callable[..., list[Tensor]], carry: list[Tensor], xs: list[Tensor], consts: list[Tensor], rows: bool
) -> list[Tensor]:
    """Trace the body into a graph of its own and put one `loop` node into the graph that is being traced."""
    body_graph = trace_body(body, [*carry, *(x[0] for x in xs), *consts])
    return record_loop(body_graph, carry, xs, consts, **({"rows": True} if rows else {}))


def record_loop(
    body: fx.GraphModule,
    carry: Sequence[Tensor],
    xs: Sequence[Tensor],
    consts: Sequence[Tensor],
    **options: Any,
) -> list[Tensor]:
    """Put a `loop` node with this body and these options into the graph that is being traced; returns what the loop
    would."""
    results = [node.meta["val"] for node in tree_leaves(body.graph.output_node().args[0])]
    with disable_proxy_modes_tracing():
        stacked = [value.new_empty(len(xs[0]), *value.shape) for value in results[len(carry) :]]
    for before, after in zip(carry, results, strict=False):
        assert (before.shape, before.dtype) == (after.shape, after.dtype), f"a carried {before} came back as {after}"
    return record(loop, [list(carry), list(xs), list(consts)], [*results[: len(carry)], *stacked], body, **options)
