"""Writes in place become values: whatever is written through, and whatever reads it, sees what eager's would."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, library
from torch._subclasses import FakeTensorMode

from wholestep.errors import GraphError
from wholestep.graph.call import SharedCalls, call
from wholestep.graph.scan import loop, scan
from wholestep.graph.trace import trace

Step = Callable[[Tensor], Tensor]


def traced(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> fx.GraphModule:
    with FakeTensorMode():
        graph = trace(function, [torch.empty(shape) for shape in shapes])
    assert not any(
        getattr(node.target, "_schema", None) and node.target._schema.is_mutable for node in graph.graph.nodes
    )
    return graph


def check(function: Callable[..., Tensor], *inputs: Tensor) -> fx.GraphModule:
    graph = traced(function, *(tuple(x.shape) for x in inputs))
    torch.testing.assert_close(graph(*(x.clone() for x in inputs))[0], function(*(x.clone() for x in inputs)))
    return graph


def fresh(x: Tensor) -> Tensor:
    total = torch.zeros(3, 4)
    total.add_(x).mul_(2)
    total += x
    return total


def read_before(x: Tensor) -> Tensor:
    total = x * 2
    before = total + 1
    total.mul_(3)
    return before + total


def view_that_is_done(x: Tensor) -> Tensor:
    total = x * 2
    first = total[:1] + 1
    total.sub_(x)
    return total + first


def view_read_later(x: Tensor) -> Tensor:
    y = x * 2
    part = y[:2].unsqueeze(0)
    y.add_(1)
    return part.sum() + y


def masked(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 0] = -1
    y.t()[1][y[:, 1] < 0] = 7
    return y


def split(x: Tensor) -> Tensor:
    y = x.clone()
    first, second = y.chunk(2, dim=1)
    first.copy_(second)
    y.unbind()[1].mul_(second[0, 0])
    return y


def written_input(x: Tensor) -> Tensor:
    row = x[0]
    x.add_(1)
    row.mul_(2)
    return x + row


def strided_view(x: Tensor) -> Tensor:
    """Reads what the view that it starts from does not hold."""
    return (x * 2)[1].as_strided((3, 2), (4, 2), 1)


FUNCTIONS = [fresh, read_before, view_that_is_done, view_read_later, masked, split, written_input, strided_view]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_are_those_of_the_writes(function: Step) -> None:
    check(function, torch.arange(-5.0, 7.0).view(3, 4))


VIEWS: dict[str, Step] = {
    "row": lambda x: x[0],
    "rows": lambda x: x[1:],
    "every other": lambda x: x[..., ::2],
    "transposed": lambda x: x.transpose(0, -1),
    "flat": lambda x: x.reshape(-1),
    "diagonal": lambda x: x.diagonal() if x.ndim > 1 else x,
    "strided": lambda x: x.as_strided((2, 2), (1, 2)),
    "expanded": lambda x: x[None],
    "detached": lambda x: x.detach(),
}
WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add": lambda x, y: x.add_(1),
    "mul": lambda x, y: x.mul_(y.mean()),
    "copy": lambda x, y: x.copy_(y.sum()),
    "fill": lambda x, y: x.fill_(3),
    "set": lambda x, y: x.index_put_([torch.tensor([0])], y.flatten()[0].clone()) if x.ndim else None,
    "mask": lambda x, y: x.masked_fill_(x > 0, -2.0),
}


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(list(VIEWS)), max_size=3), st.sampled_from(list(WRITES)), st.integers(0, 3)),
        min_size=1,
        max_size=4,
    )
)
def test_any_writes_through_any_views(program: list[tuple[list[str], str, int]]) -> None:
    """Views are taken of views taken before, and all are read at the end."""

    def function(x: Tensor) -> Tensor:
        seen = [x.clone()]
        for views, write, base in program:
            view = seen[base % len(seen)]
            for name in views:
                if view.numel() >= 4 and view.ndim:
                    view = VIEWS[name](view)
            WRITES[write](view, seen[-1])
            seen.append(view)
        return torch.cat([view.flatten() for view in seen])

    check(function, torch.arange(-4.0, 12.0).view(4, 4))


def test_gradients_through_a_written_view() -> None:
    def function(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            y = x * x
            y[0].mul_(x[1])
            y.t()[2] = x[:, 0].exp()
            (grad,) = torch.autograd.grad(y.sin().sum(), x)
        return grad

    check(function, torch.linspace(-1, 1, 12).view(3, 4))


def test_loops_and_calls_stay() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.clone()
        y[0].add_(1)
        (total,), (sums,) = scan(lambda carry, row, _: ([carry[0] + row[0]], [row[0] * 2]), [y[1]], [y], [])
        (called,) = SharedCalls()("key", lambda given: [given[0].exp()], [y])
        called[1] = total
        sums[0].copy_(called[0])
        return called + sums

    graph = traced(function, (3, 4))
    assert {loop, call} <= {node.target for node in graph.graph.nodes}


def test_new_nodes_come_from_where_the_write_does() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.clone()
        y[0].add_(1)
        return y

    for node in [node for node in traced(function, (3, 4)).graph.nodes if node.op == "call_function"]:
        assert node.meta["line"].startswith("test_writes.py:") and node.meta["backward"] is False


@library.custom_op("wholestep_test::scale_", mutates_args=["x"])
def scale_(x: Tensor) -> None:
    x.mul_(2)


@scale_.register_fake
def _(x: Tensor) -> None: ...


def test_an_operator_of_others_that_writes_is_refused() -> None:
    def function(x: Tensor) -> Tensor:
        y = x + 1
        scale_(y)
        return y

    with pytest.raises(GraphError, match=r"write in place; use their other forms:\n  wholestep_test\.scale_"):
        traced(function, (3,))
