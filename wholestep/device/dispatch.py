"""What PyTorch calls for an operator on `tpu` tensors.

One function serves all operators that compute: it finds the program for what it is given, and runs or records it. What
only rearranges sizes is PyTorch's own kernel; what moves bytes between devices is in `kernels.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from wholestep.device.buffer import Buffer, buffer_of, tensor_over
from wholestep.device.eager import EAGER, Number
from wholestep.device.operator import Given, Operand, OperatorProgram
from wholestep.device.scalars import changing_number, with_tensor
from wholestep.device.strides import View
from wholestep.errors import DataDependentError

aten = torch.ops.aten

_PROGRAMS: dict[Any, OperatorProgram | None] = {}
"""By operator, operands and static arguments; None where only the values tell the result's shape."""

_TAKES_CPU_INDICES = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


class _Call:
    """An operator's arguments, read: its tensors by storage, its numbers, and a key of all that is static."""

    def __init__(self, operator: torch._ops.OpOverload) -> None:
        self.operator = operator
        self.tensors: list[Tensor] = []
        self.buffers: list[Buffer] = []
        self.operands: list[tuple[Any, ...]] = []
        self.numbers: list[Number] = []
        self._arrays: dict[int, int] = {}

    def key(self, argument: Any) -> Any:
        """What stands for an argument in the key."""
        kind = type(argument)
        if kind is int or argument is None:
            return argument
        if isinstance(argument, Tensor):
            return self._tensor(argument)
        if isinstance(argument, (list, tuple)):
            return tuple([self.key(each) for each in argument])
        if kind is float or kind is complex:
            return kind, repr(argument)  # 1.0 is 1 for a dictionary, and no NaN is another
        return kind, argument

    def number(self, value: float) -> Any:
        """What stands in the key for a number that is an input."""
        dtype = torch.float64 if isinstance(value, float) else torch.int64 if type(value) is int else torch.bool
        self.numbers.append((dtype, value))
        self.operands.append((-1, dtype, _NOWHERE, (), True))
        self.tensors.append(_NO_TENSOR)
        return "number", dtype

    def _tensor(self, tensor: Tensor) -> Any:
        if tensor.device.type != "tpu":
            if tensor.dim() == 0 and tensor.device.type == "cpu":
                value = tensor.item()
                self.numbers.append((tensor.dtype, value))
                operand: tuple[Any, ...] = (-1, tensor.dtype, _NOWHERE, (), True)
                self.operands.append(operand)
                self.tensors.append(tensor)
                return operand
            if self.operator not in _TAKES_CPU_INDICES or tensor.device.type != "cpu":
                raise RuntimeError(
                    f"{self.operator}: expected all tensors to be on the same device, but found one on "
                    f"{tensor.device} and one on tpu; `.to(device)` moves it"
                )
            tensor = tensor.to("tpu")
        buffer = buffer_of(tensor)
        place = self._arrays.get(id(buffer))
        if place is None:
            place = self._arrays[id(buffer)] = len(self.buffers)
            self.buffers.append(buffer)
        operand = (
            place,
            tensor.dtype,
            View(tensor.shape, tensor.stride(), tensor.storage_offset()),
            buffer.shape,
            buffer.value is not None,
        )
        self.operands.append(operand)
        self.tensors.append(tensor)
        return operand


_NOWHERE = View((), (), 0)
_NO_TENSOR = torch.empty(0)


def call(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Compute an operator that neither moves bytes between devices nor returns a view.

    Raises:
        LoweringError: it has no lowering to XLA.
    """
    read = _Call(operator)
    number = changing_number(operator)
    if number is not None and _passed(operator, number, args, kwargs):
        args, kwargs, key = _with_number(operator, number, args, kwargs, read)
        compute = with_tensor(operator)
    else:
        key = operator, tuple([read.key(each) for each in args])
        if kwargs:
            key = *key, tuple([(name, read.key(each)) for name, each in kwargs.items()])
        compute = operator
    try:
        program = _PROGRAMS[key]
    except KeyError:
        program = _PROGRAMS[key] = _trace(read, compute, args, kwargs)
    if program is None:
        return on_host(operator, *args, **kwargs)
    outputs = EAGER.execute(program, read.numbers, read.buffers)
    for array, value in zip(program.writes, outputs, strict=False):
        read.buffers[array].value = value
    if program.is_plain:
        layout, dtype = program.results[0]
        return tensor_over(Buffer(outputs[0], layout.shape, dtype), layout)
    results = [
        tensor_over(Buffer(value, layout.shape, dtype), layout)
        for value, (layout, dtype) in zip(outputs[len(program.writes) :], program.results, strict=True)
    ]
    return program.returned(read.tensors, results)


def on_host(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Compute an operator on the CPU, where only values tell what shape its result has; its results on the device."""
    EAGER.flush(f"{operator} needs values")
    args, kwargs = tree_map(_to_cpu, (args, kwargs))
    return tree_map(lambda x: x.to("tpu") if isinstance(x, Tensor) else x, operator(*args, **kwargs))


def _to_cpu(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.cpu()
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _passed(operator: torch._ops.OpOverload, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    value = kwargs.get(name, args[_place(operator, name)] if len(args) > _place(operator, name) else None)
    return isinstance(value, (int, float))


@functools.cache
def _place(operator: torch._ops.OpOverload, name: str) -> int:
    return [argument.name for argument in operator._schema.arguments].index(name)


def _with_number(
    operator: torch._ops.OpOverload, name: str, args: Sequence[Any], kwargs: dict[str, Any], read: _Call
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """The arguments with that number marked as an operand, and their key."""
    place = _place(operator, name)
    given, named = list(args), dict(kwargs)
    parts = []
    for i, each in enumerate(given):
        parts.append(read.number(each) if i == place else read.key(each))
        if i == place:
            given[i] = Given(len(read.operands) - 1)
    for key, each in named.items():
        parts.append((key, read.number(each) if key == name else read.key(each)))
        if key == name:
            named[key] = Given(len(read.operands) - 1)
    return tuple(given), named, (operator, "number", tuple(parts))


def _trace(
    read: _Call, compute: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> OperatorProgram | None:
    places = iter(i for i, tensor in enumerate(read.tensors) if tensor is not _NO_TENSOR)

    def template(x: Any) -> Any:
        if isinstance(x, Tensor):
            return Given(next(places))
        return torch.device("cpu") if isinstance(x, torch.device) else x

    args, kwargs = tree_map(template, (tuple(args), dict(kwargs)), is_leaf=lambda x: isinstance(x, Given))
    operands = [Operand(*operand) for operand in read.operands]
    try:
        return OperatorProgram(read.operator, compute, args, kwargs, operands)
    except DataDependentError:
        return None
