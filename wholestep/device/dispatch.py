"""What PyTorch calls for an operator on `tpu` tensors.

One function serves all operators that compute: it finds the program for what it is given, and runs or records it. What
only rearranges sizes is PyTorch's own kernel; what moves bytes between devices is in `kernels.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from wholestep.device.buffer import Buffer, buffer_of, tensor_over
from wholestep.device.eager import EAGER, Number
from wholestep.device.operator import Given, Operand, OperatorProgram
from wholestep.device.recurrent import CELLS
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
        self.tensors: list[Tensor | None] = []
        self.buffers: list[Buffer] = []
        self.operands: list[tuple[Any, ...]] = []
        self.numbers: list[Number] = []
        self.replaced: dict[int | str, int] = {}  # arguments that are numbers -> their operands
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

    def number(self, place: int | str, argument: Any) -> Any:
        """What stands in the key for an argument that is an input of the program, if it is a number."""
        kind = type(argument)
        if kind is not float and kind is not int and kind is not bool:
            return self.key(argument)
        dtype = _NUMBERS[kind]
        self.replaced[place] = len(self.operands)
        self.numbers.append((dtype, argument))
        self.operands.append((-1, dtype, _NOWHERE, (), True))
        self.tensors.append(None)
        return "number", dtype

    def _tensor(self, tensor: Tensor) -> Any:
        if tensor.device.type != "tpu":
            if tensor.dim() == 0 and tensor.device.type == "cpu":
                value = tensor.item()
                self.numbers.append((tensor.dtype, value))
                operand: tuple[Any, ...] = (-2, tensor.dtype, _NOWHERE, (), True)
                self.operands.append(operand)
                self.tensors.append(tensor)
                return operand
            if self.operator not in _TAKES_CPU_INDICES or tensor.device.type != "cpu":
                raise RuntimeError(
                    f"{self.operator}: expected all tensors to be on the same device, but found one on "
                    f"{tensor.device} and one on tpu; `.to(device)` moves it"
                )
            tensor = tensor.to("tpu")
        if tensor.dtype.is_complex:
            tensor = resolved(tensor)
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
_NUMBERS = {float: torch.float64, int: torch.int64, bool: torch.bool}


def call(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Compute an operator that neither moves bytes between devices nor returns a view.

    Raises:
        LoweringError: it has no lowering to XLA.
    """
    read = _Call(operator)
    numbers = _numbers(operator)
    parts = [read.number(i, each) if i in numbers else read.key(each) for i, each in enumerate(args)]
    if kwargs:
        parts.append(
            tuple([(name, read.number(name, x) if name in numbers else read.key(x)) for name, x in kwargs.items()])
        )
    key = operator, len(args), tuple(parts), torch.get_default_dtype()
    try:
        program = _PROGRAMS[key]
    except KeyError:
        program = _PROGRAMS[key] = _trace(read, args, kwargs)
    if program is None:
        return on_host(operator, *args, **kwargs)
    if program.resizes:
        for place, size in program.resizes:
            aten.resize_.default(read.tensors[place], size)
        return call(operator, *args, **kwargs)
    outputs = EAGER.execute(program, read.numbers, read.buffers)
    for array, value in zip(program.writes, outputs, strict=False):
        read.buffers[array].value = value
    new = [
        Buffer(value, layout.shape, dtype)
        for value, (layout, dtype) in zip(outputs[len(program.writes) :], program.results, strict=True)
    ]
    if EAGER.recording is not None:
        EAGER.recording.see(read.tensors)
        EAGER.recording.hold([*(read.buffers[array] for array in program.writes), *new])
    results = [tensor_over(buffer, layout) for buffer, (layout, _) in zip(new, program.results, strict=True)]
    return results[0] if program.is_plain else program.returned(read.tensors, results)


def resolved(tensor: Tensor) -> Tensor:
    """`tensor`, its elements conjugated or negated where PyTorch has only marked it so."""
    if tensor.is_conj():
        tensor = call(aten.conj_physical.default, tensor.conj())
    if tensor.is_neg():
        tensor = call(aten.neg.default, tensor._neg_view())
    return tensor


def on_host(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Compute an operator on the CPU, where only values tell what shape its result has; its results on the device."""
    EAGER.flush(f"{operator} needs values")
    args, kwargs = tree_map(_to_cpu, (args, kwargs))
    return tree_map(lambda x: x.to("tpu") if isinstance(x, Tensor) else x, operator(*args, **kwargs))


def _to_cpu(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.cpu()
    return torch.device("cpu") if isinstance(x, torch.device) else x


@functools.cache
def _numbers(operator: torch._ops.OpOverload) -> frozenset[int | str]:
    """Places and names of the arguments that are inputs of the program where they are Python numbers: tensors by the
    schema, which PyTorch hands a kernel as numbers, and the one that `scalars.py` knows."""
    return frozenset(
        each
        for place, argument in enumerate(operator._schema.arguments)
        for each in (place, argument.name)
        if isinstance(argument.type, torch.TensorType) or argument.name == changing_number(operator)
    )


def _trace(read: _Call, args: Sequence[Any], kwargs: dict[str, Any]) -> OperatorProgram | None:
    tensors = iter(i for i in range(len(read.tensors)) if i not in read.replaced.values())

    def template(x: Any) -> Any:
        if isinstance(x, Tensor):
            return Given(next(tensors))
        return torch.device("cpu") if isinstance(x, torch.device) else x

    def argument(place: int | str, x: Any) -> Any:
        return Given(read.replaced[place]) if place in read.replaced else tree_map(template, x)

    args = tuple(argument(place, x) for place, x in enumerate(args))
    kwargs = {name: argument(name, x) for name, x in kwargs.items()}
    changing = changing_number(read.operator)
    places = {argument.name: place for place, argument in enumerate(read.operator._schema.arguments)}
    given_as_tensor = changing is not None and (changing in read.replaced or places[changing] in read.replaced)
    compute = with_tensor(read.operator) if given_as_tensor else CELLS.get(read.operator, read.operator)
    operands = [Operand(*operand) for operand in read.operands]
    try:
        return OperatorProgram(read.operator, compute, args, kwargs, operands)
    except DataDependentError:
        return None
