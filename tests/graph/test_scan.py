"""One loop three ways: eager PyTorch, traced and run in PyTorch, traced and lowered."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
import pytest
import torch
from support import TOLERANCE, relative_error
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode

from wholestep.errors import GraphError
from wholestep.graph.passes.dead_nodes import remove_dead_nodes
from wholestep.graph.scan import loop, scan
from wholestep.graph.step import StepGraph, graphs
from wholestep.graph.trace import trace
from wholestep.xla.interpret import Interpreter

CARRY = [torch.zeros(3), torch.ones(())]
XS = [torch.arange(12.0).reshape(4, 3), torch.tensor([1, 2, 3, 4])]
CONSTS = [torch.tensor([0.5, 2.0, -1.0])]


class Body:
    """Sums, a running product and two rows of results; counts how often it is called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, carry: Sequence[Tensor], x: Sequence[Tensor], consts: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        self.calls += 1
        (total, product), (row, number), (factor,) = carry, x, consts
        total = total + row * factor
        return [total, product * 1.5], [total.sum() * number, row.bool()]


def looped(body: Body):
    def function(carry: list[Tensor], xs: list[Tensor], consts: list[Tensor]) -> list[Tensor]:
        last, ys = scan(body, carry, xs, consts)
        return [*last, *ys]

    return function


def traced(body: Body, carry: list[Tensor], xs: list[Tensor], consts: list[Tensor]) -> fx.GraphModule:
    with FakeTensorMode() as mode:
        fakes = [[mode.from_tensor(tensor) for tensor in group] for group in (carry, xs, consts)]
        return trace(looped(body), fakes)


def by_hand() -> list[Tensor]:
    """What the loop computes, written out."""
    sums = torch.cumsum(XS[0] * CONSTS[0], 0)
    return [sums[-1], torch.tensor(1.5**4), sums.sum(1) * XS[1], XS[0].bool()]


def test_eager() -> None:
    body = Body()
    torch.testing.assert_close(looped(body)(CARRY, XS, CONSTS), by_hand())
    assert body.calls == 4


def test_traced() -> None:
    body = Body()
    module = traced(body, CARRY, XS, CONSTS)
    assert body.calls == 1
    assert len(list(graphs(module))) == 2
    loops = [node for node in module.graph.nodes if node.target is loop]
    assert len(loops) == 1
    assert [value.shape for value in loops[0].meta["val"]] == [result.shape for result in by_hand()]
    torch.testing.assert_close(list(module(*CARRY, *XS, *CONSTS)), by_hand())


def test_lowered() -> None:
    module = remove_dead_nodes(StepGraph(traced(Body(), CARRY, XS, CONSTS), (), (), {})).module
    inputs = [tensor.numpy() for tensor in (*CARRY, *XS, *CONSTS)]
    program = jax.jit(lambda *args: Interpreter().run(module, *args))
    for result, expected in zip(program(*inputs), by_hand(), strict=True):
        assert result.shape == tuple(expected.shape)
        assert relative_error(np.asarray(result, np.float32), expected.float().numpy()) < TOLERANCE[torch.float32]
    assert program.lower(*inputs).as_text().count("stablehlo.while") == 1


def test_one_iteration_and_no_constants() -> None:
    def body(
        carry: Sequence[Tensor], x: Sequence[Tensor], consts: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        return [carry[0] + x[0]], []

    last, ys = scan(body, [torch.zeros(2)], [torch.ones(1, 2)])
    assert ys == []
    torch.testing.assert_close(last, [torch.ones(2)])


def test_a_carry_that_changes_its_dtype_is_refused() -> None:
    def widen(
        carry: Sequence[Tensor], x: Sequence[Tensor], consts: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        return [carry[0].double()], []

    def function(carry: Tensor, xs: Tensor) -> list[Tensor]:
        return scan(widen, [carry], [xs])[0]

    with FakeTensorMode(), pytest.raises(AssertionError, match=r"a carried .* came back as"):
        trace(function, [torch.zeros(2), torch.zeros(3, 2)])


def test_a_body_that_reads_other_tensors_is_refused() -> None:
    def function(carry: Tensor, xs: Tensor, outer: Tensor) -> list[Tensor]:
        return scan(lambda carry, x, consts: ([carry[0] + x[0] * outer], []), [carry], [xs])[0]

    with FakeTensorMode(), pytest.raises(GraphError, match="reads a tensor that it was not given"):
        trace(function, [torch.zeros(2), torch.zeros(3, 2), torch.ones(2)])
