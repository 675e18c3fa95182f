"""Writes in place: those that are a value's only view become values, the others are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from wholestep.errors import GraphError
from wholestep.graph.trace import trace


def fresh(x: Tensor) -> Tensor:
    total = torch.zeros(3)
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


@pytest.mark.parametrize("function", [fresh, read_before, view_that_is_done])
def test_values_are_those_of_the_writes(function) -> None:
    with FakeTensorMode():
        graph = trace(function, [torch.empty(3)])
    writing = [
        node for node in graph.graph.nodes if getattr(node.target, "_schema", None) and node.target._schema.is_mutable
    ]
    assert not writing
    x = torch.tensor([1.0, -2.0, 3.0])
    torch.testing.assert_close(graph(x)[0], function(x.clone()))


def through_a_view(x: Tensor) -> Tensor:
    y = torch.zeros(3)
    y[:2] = 1
    return y * x


def view_read_later(x: Tensor) -> Tensor:
    y = x * 2
    part = y[:2]
    y.add_(1)
    return part.sum() + y


def view_of_a_view_read_later(x: Tensor) -> Tensor:
    y = x * 2
    part = y[:2].unsqueeze(0)
    y.add_(1)
    return part.sum() + y


@pytest.mark.parametrize("function", [through_a_view, view_read_later, view_of_a_view_read_later])
def test_what_another_view_would_see_is_refused(function) -> None:
    with FakeTensorMode(), pytest.raises(GraphError, match="write in place into what others see"):
        trace(function, [torch.empty(3)])
