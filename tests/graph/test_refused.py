"""What no program can have is refused, with the line that asked for it and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from wholestep.errors import DataDependentError, GraphError
from wholestep.graph.trace import trace

SHAPES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "nonzero": (lambda x: x.nonzero(), "torch.where"),
    "where without branches": (lambda x: torch.where(x > 0)[0], "torch.where"),
    "mask as an index": (lambda x: x[x > 0], "torch.where"),
    "masked_select": (lambda x: x.masked_select(x > 0), "torch.where"),
    "unique": (lambda x: x.unique(), "torch.sort"),
    "unique of a dimension": (lambda x: x.unique(dim=0), "torch.sort"),
    "unique_consecutive": (lambda x: x.unique_consecutive(), "mask"),
    "bincount": (lambda x: x.long().bincount(), "scatter_add"),
    "repeat_interleave by a tensor": (lambda x: x.repeat_interleave(x.long()), "Python number"),
}
VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "item": lambda x: x * x.sum().item(),
    "float": lambda x: x * float(x.sum()),
    "if": lambda x: x if x.sum() > 0 else -x,
    "slice": lambda x: x[: int(x.argmax())],
    "tolist": lambda x: torch.ones(x.long().tolist()),
    "shape": lambda x: torch.zeros(x.long()[0]),
    "arange": lambda x: torch.arange(x.sum()),
    "equal": lambda x: x if torch.equal(x, x + 1) else -x,
    "numpy": lambda x: torch.tensor(x.numpy()),
    "places to split at": lambda x: x.tensor_split(x.long())[0],
    "allclose": lambda x: x if torch.allclose(x, x + 1) else -x,
}


def line_of(function: Callable[[Tensor], Tensor]) -> str:
    return f"{Path(__file__).name}:{function.__code__.co_firstlineno}"


def refusal(function: Callable[[Tensor], Tensor]) -> str:
    with FakeTensorMode():
        fake = torch.empty(3)
    with pytest.raises(DataDependentError) as of_a_fake:
        trace(function, [fake])
    with pytest.raises(DataDependentError) as of_a_tensor:
        trace(function, [torch.ones(3)])
    assert str(of_a_fake.value) == str(of_a_tensor.value)
    return str(of_a_tensor.value)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_that_depends_on_values_is_refused(name: str) -> None:
    function, remedy = SHAPES[name]
    message = refusal(function)
    assert message.startswith(f"{line_of(function)}: the shape of what aten.")
    assert remedy in message.partition(";")[2]


@pytest.mark.parametrize("name", VALUES)
def test_python_that_depends_on_values_is_refused(name: str) -> None:
    message = refusal(VALUES[name])
    assert message.startswith(f"{line_of(VALUES[name])}: Python asks for a value of a tensor")
    assert "keep it a tensor" in message


def test_a_mask_that_keeps_the_shape_is_traced() -> None:
    def masked(x: Tensor) -> Tensor:
        x = x.masked_fill(x > 1, 0)
        return torch.where(x > 0, x, 0) * x.argmax()

    trace(masked, [torch.ones(3)])


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(GraphError, match=r"test_refused\.py:\d+: .* gives a sparse tensor"):
        trace(lambda x: x.to_sparse() * 2, [torch.ones(3, 3)])
    with pytest.raises(GraphError, match="sparse tensors cannot be captured"):
        trace(lambda x: x * 2, [torch.eye(3).to_sparse()])
