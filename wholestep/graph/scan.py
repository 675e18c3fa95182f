"""The loop of a step graph: one body, run once for each slice of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx
from torch._higher_order_ops.utils import reenter_make_fx
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, get_proxy_mode, track_tensor_tree
from torch.utils._pytree import tree_leaves, tree_map

Body = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]]
"""`(carry, x, consts) -> (carry, y)`."""


def scan(
    body: Body, carry: Sequence[Tensor], xs: Sequence[Tensor], consts: Sequence[Tensor] = ()
) -> tuple[list[Tensor], list[Tensor]]:
    """Run `body(carry, x, consts) -> (carry, y)` for each slice `x` of `xs` along their first dimension.

    While a step is traced, the body is traced once and the loop becomes one node, a call of `loop`, which is lowered
    to one XLA loop.

    Args:
        body: reads no tensors but its arguments.
        carry: what an iteration hands to the next; shapes and dtypes do not change.
        xs: at least one tensor, all of one leading size, the number of iterations.
        consts: what every iteration reads.

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
    results = run(flat_body, list(carry), list(xs), list(consts))
    return list(results[: len(carry)]), list(results[len(carry) :])


def loop(
    body: Callable[..., Sequence[Tensor]],
    carry: Sequence[Tensor],
    xs: Sequence[Tensor],
    consts: Sequence[Tensor],
    reverse: bool = False,
) -> tuple[Tensor, ...]:
    """What a loop node calls: `body(*carry, *x, *consts) -> (*carry, *y)`. Returns the last carry, then the stacked
    `y`; with `reverse`, the last slice of `xs` comes first, and a `y` stands where its `x` did. On plain tensors it
    runs the loop, so that a step graph also runs in PyTorch."""
    carry = list(carry)
    rows: list[Sequence[Tensor]] = []
    trips = range(len(xs[0]))
    for i in reversed(trips) if reverse else trips:
        results = body(*carry, *(x[i] for x in xs), *consts)
        carry = list(results[: len(carry)])
        rows.append(results[len(carry) :])
    if reverse:
        rows.reverse()
    return (*carry, *(torch.stack(column) for column in zip(*rows, strict=True)))


def _record(
    body: Callable[..., list[Tensor]], carry: list[Tensor], xs: list[Tensor], consts: list[Tensor]
) -> list[Tensor]:
    """Trace the body into a graph of its own and put one `loop` node into the graph that is being traced."""
    body_graph = reenter_make_fx(body)(*carry, *(x[0] for x in xs), *consts)
    for node in body_graph.graph.find_nodes(op="get_attr"):
        read = getattr(body_graph, node.target)
        assert not isinstance(read, FakeTensor), f"the body reads a tensor that is not among its arguments: {read}"
    return record_loop(body_graph, carry, xs, consts)


def record_loop(
    body: fx.GraphModule,
    carry: Sequence[Tensor],
    xs: Sequence[Tensor],
    consts: Sequence[Tensor],
    reverse: bool = False,
) -> list[Tensor]:
    """Put a `loop` node with this body into the graph that is being traced; returns what the loop would."""
    mode = get_proxy_mode()
    assert mode is not None and isinstance(mode.tracer, PythonKeyTracer)
    results = [node.meta["val"] for node in tree_leaves(body.graph.output_node().args[0])]
    length = len(xs[0])
    fakes = [
        *(torch.empty_like(value) for value in results[: len(carry)]),
        *(value.new_empty(length, *value.shape) for value in results[len(carry) :]),
    ]
    for before, after in zip(carry, fakes, strict=False):
        assert (before.shape, before.dtype) == (after.shape, after.dtype), f"a carried {before} came back as {after}"
    name = mode.tracer.get_fresh_qualname("loop_body")
    mode.tracer.root.register_module(name, body)
    operands = tree_map(mode.tracer.unwrap_proxy, (list(carry), list(xs), list(consts)))
    get_body = mode.tracer.create_proxy("get_attr", name, (), {})
    node = mode.tracer.create_proxy(
        "call_function", loop, (get_body, *operands), {"reverse": True} if reverse else {}, name="loop"
    )
    return track_tensor_tree(fakes, node, constant=None, tracer=mode.tracer)
