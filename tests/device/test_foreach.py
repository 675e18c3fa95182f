"""Operators on lists of tensors: one program each, equal to the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from device.reference import assert_same
from torch import Tensor
from torch.utils._pytree import tree_leaves

from wholestep.device import foreach

SHAPES = ((3, 4), (5,), ())


def lists(device: str, dtype: torch.dtype = torch.float32) -> Iterator[list[Tensor]]:
    """Lists of tensors, without end: between 0 and 1, integers between 1 and 4."""
    generator = torch.Generator().manual_seed(0)
    scale, least = (1.0, 0.0) if dtype.is_floating_point else (4.0, 1.0)
    while True:
        yield [(scale * torch.rand(shape, generator=generator) + least).to(dtype).to(device) for shape in SHAPES]


def arguments(operator: Any, device: str) -> tuple[Any, ...]:
    """Something for each argument without a default."""
    tensors, given = lists(device), []
    for argument in operator._schema.arguments:
        kind = str(argument.type)
        if argument.has_default_value():
            break
        if kind == "List[Tensor]":
            given.append(next(tensors))
        elif kind == "List[number]":
            given.append([0.5, 2.0, 3.0])
        elif kind == "Tensor":
            given.append(torch.tensor(1.5).to(device))
        else:
            given.append(1.5)
    return tuple(given)


@pytest.mark.parametrize("name", sorted(foreach.names()))
def test_each_operator(name: str, eager_mode: str) -> None:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def run(device: str) -> Any:
        given = arguments(operator, device)
        result = operator(*given)
        return result, given, [tensor._version for tensor in tree_leaves(given) if isinstance(tensor, Tensor)]

    assert_same(run("tpu"), run("cpu"))


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y, z: torch._foreach_add_(x, y, alpha=0.25),
        lambda x, y, z: torch._foreach_sub_(x, y, alpha=2),
        lambda x, y, z: torch._foreach_addcmul_(x, y, z, value=-0.5),
        lambda x, y, z: torch._foreach_addcdiv_(x, y, z, [0.1, 0.2, 0.3]),
        lambda x, y, z: torch._foreach_lerp_(x, y, 0.75),
        lambda x, y, z: torch._foreach_mul_(x, -0.0),
        lambda x, y, z: torch._foreach_norm(x, 1, dtype=torch.float32),
        lambda x, y, z: torch._foreach_add(x, [x[0], y[1], x[2]]),
        lambda x, y, z: torch._foreach_div([x[0].t(), x[0][1:]], [y[0].t(), z[0][1:]]),
    ],
    ids=["alpha", "whole alpha", "value", "values", "weight", "minus zero", "norm", "one twice", "views"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_numbers_dtypes_and_views(call: Callable[..., Any], dtype: torch.dtype, eager_mode: str) -> None:
    def run(device: str) -> Any:
        given = [tensors for tensors, _ in zip(lists(device, dtype), range(3), strict=False)]
        try:
            return call(*given), given
        except RuntimeError:
            return "refused", given

    assert_same(run("tpu"), run("cpu"))


def test_another_number_is_not_another_program(eager_mode: str) -> None:
    x = next(lists("tpu"))
    for i in range(4):
        if i == 1:
            torch.tpu.synchronize()
            torch.tpu.counters().reset()
        torch._foreach_mul_(x, 1.0 + i)
        torch._foreach_addcdiv_(x, x, x, [0.5 + i, 1.0 + i, 2.0 + i])
        torch.tpu.synchronize()
    assert torch.tpu.counters().compiles == 0 and torch.tpu.counters().operators == 6


def test_lists_of_different_lengths(eager_mode: str) -> None:
    x = next(lists("tpu"))
    with pytest.raises(RuntimeError, match=r"_foreach_add.List.* 2 and 3 elements|same number of tensors"):
        torch._foreach_add(x, x[:2])


def test_autograd_sees_the_write(eager_mode: str) -> None:
    x = torch.ones(3, device="tpu", requires_grad=True)
    y = x * 2
    z = y * y
    with torch.no_grad():
        torch._foreach_add_([y], 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_what_is_computed_on_the_device_is_not_written_to_the_cpu(eager_mode: str) -> None:
    with pytest.raises(RuntimeError, match="writes into a CPU tensor"):
        torch._foreach_add_([torch.tensor(1.0)], [torch.ones((), device="tpu")])
