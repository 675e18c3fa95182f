"""Every place where `torch.compile` ends a graph is said once, and counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from wholestep.device.graph_breaks import graph_breaks

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # PyTorch's own, in dynamo


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def cut(a: Tensor) -> Tensor:
    a = a * 2
    print("between")
    return a + 1


def loop(a: Tensor) -> Tensor:
    for _ in range(2):
        a = a * 2
        print("between")
    return a


def branch(a: Tensor) -> Tensor:
    return a + 1 if a.sum() > 0 else a - 1


@pytest.mark.parametrize(
    ("function", "line", "reason"),
    [
        (cut, 2, "builtin operator `print`"),
        (loop, 3, "builtin operator `print`.*; the whole function runs eagerly"),
        (branch, 1, "data-dependent branching"),
    ],
)
def test_graph_breaks_are_reported(
    function: Callable[[Tensor], Tensor], line: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    a = torch.ones(3)
    fast = torch.compile(function, backend="wholestep")
    assert torch.equal(fast(a), function(a)) and torch.equal(fast(a), function(a))
    place = f"test_graph_breaks.py:{function.__code__.co_firstlineno + line}: "
    (record,) = [record for record in caplog.records if record.name == "wholestep"]
    assert place in record.getMessage() and re.search(reason, record.getMessage())
    (found,) = [text for text in graph_breaks() if text.startswith(place)]
    assert re.search(reason, found) and graph_breaks()[found] == 1
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(function, backend="wholestep", fullgraph=True)(a)


def test_graph_breaks_of_other_backends_are_not_ours() -> None:
    before = graph_breaks()
    torch.compile(branch, backend="aot_eager")(torch.ones(2))
    assert graph_breaks() == before
