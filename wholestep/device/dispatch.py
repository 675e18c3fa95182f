"""What PyTorch calls for an operator on `tpu` tensors.

One class serves all operators that compute: it finds the program for what it is given, and runs or records it. What
only rearranges sizes is PyTorch's own kernel; what moves bytes between devices is in `kernels.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils._pytree import tree_leaves, tree_map

from wholestep.device import foreach
from wholestep.device.bits import is_reinterpreted
from wholestep.device.buffer import Buffer, buffer_of, tensor_over
from wholestep.device.composed import COMPOSED
from wholestep.device.eager import EAGER, Number, user_line
from wholestep.device.fused_optimizers import FUSED
from wholestep.device.operator import Given, Operand, OperatorProgram, does_not_fit, is_given
from wholestep.device.random import GENERATOR
from wholestep.device.scalars import changing_number, with_tensor
from wholestep.device.strides import View, part, span, with_part
from wholestep.errors import DataDependentError, GraphError

aten = torch.ops.aten

# PyTorch's own composition of an operator on lists is that of any device.
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

_TAKES_CPU_INDICES = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}

_NUMBERS = {float: torch.float64, int: torch.int64, bool: torch.bool}
_TENSORS = {Tensor, torch.nn.Parameter}
_STATIC = {type(None), int, bool, torch.dtype, torch.memory_format}
_new_tensor = torch._C._acc.create_empty_tensor
_COMPLEX = {torch.complex32, torch.complex64, torch.complex128}


class Operation:
    """An operator, called on the device.

    Each operator has the programs of its own, by what is static of its arguments: a tensor's dtype and where it lies in
    its storage, and whatever is neither a tensor nor a number that programs take as an input. What most calls are given
    has a short form of that, quickly made.

    Raises:
        LoweringError: when called, that it has no lowering to XLA.
    """

    __slots__ = ("_generator", "_programs", "_programs_in_short", "_writes_a_list", "numbers", "operator", "written")

    def __init__(self, operator: torch._ops.OpOverload) -> None:
        self.operator = operator
        self.numbers = _number_arguments(operator)
        self.written = _written_arguments(operator)
        # PyTorch leaves it to their kernels to count the writes.
        self._writes_a_list = operator._schema.is_mutable and foreach.base_of(operator) is not None
        names = [argument.name for argument in operator._schema.arguments]
        self._generator = names.index("generator") if "generator" in names else len(names)
        # An error where only the values tell the result's shape.
        self._programs: dict[Any, OperatorProgram | DataDependentError] = {}
        self._programs_in_short: dict[Any, OperatorProgram] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        quick = self._quickly(args, kwargs)
        program = None if quick is None else self._programs_in_short.get(quick[0])
        if program is not None:
            assert quick is not None
            _, tensors, buffers, values, numbers, parts = quick
            if program.single is None or EAGER.captures:
                return self._run(program, tensors, buffers, values, numbers, parts)
            size, dtype = program.single
            result = _new_tensor(size, dtype)
            buffer = result.untyped_storage().buffer = Buffer(None, size, dtype)
            EAGER.execute(program, numbers, buffers, values, (buffer,))
            return result
        if len(args) > self._generator:
            return self(*args[: self._generator], generator=args[self._generator], **kwargs)
        if (generator := kwargs.get("generator")) is not None:
            if EAGER.captures:
                raise GraphError(
                    f"{user_line()}: a captured step draws from the device's own generator (torch.manual_seed), not "
                    "from one that it is given, whose numbers would not be seen again; leave `generator` out"
                )
            with GENERATOR.drawing_from(generator):
                return self(*args, **{**kwargs, "generator": None})
        read = _Read(self, args, kwargs)
        if read.key not in self._programs:
            self._programs[read.key] = _trace(read, args, kwargs)
        found = self._programs[read.key]
        if isinstance(found, DataDependentError):
            if EAGER.captures:
                raise DataDependentError(f"{user_line()}: {found.args[0].partition(': ')[2]}")
            return on_host(self.operator, *args, **kwargs)
        program = found
        if self._writes_a_list and _crosses(args):
            return self.operator.redispatch(_CPU, *args, **kwargs)
        if program.resizes:
            for place, size in program.resizes:
                target = read.tensors[place]
                assert target is not None
                if sum(tensor is target for tensor in read.tensors) > 1:  # it is read too
                    raise does_not_fit(self.operator, target.shape, size)
                aten.resize_.default(target, size)
            return self(*args, **kwargs)
        if quick is not None:
            self._programs_in_short[quick[0]] = program
        values = [buffer.value for buffer in read.buffers]
        return self._run(program, read.tensors, read.buffers, values, read.numbers, read.parts)

    def _run(
        self,
        program: OperatorProgram,
        tensors: Sequence[Tensor | None],
        buffers: Sequence[Buffer],
        values: Sequence[Any],
        numbers: Sequence[Number],
        parts: Sequence[_WrittenPart],
    ) -> Any:
        """What the operator returns, once what it writes has its new values."""
        new = [Buffer(None, layout.shape, dtype) for layout, dtype in program.results]
        EAGER.execute(program, numbers, buffers, values, [*(buffers[array] for array in program.writes), *new])
        for each in parts:
            each.storage.value = with_part(each.storage.array, each.copy.array, each.offset)
        if EAGER.captures:
            assert EAGER.recording is not None
            EAGER.recording.see(tensors)
        if self._writes_a_list:
            written = [tensors[operand] for operand in program.written]
            increment_version([tensor for tensor in written if tensor is not None and not tensor.is_inference()])
        results = [tensor_over(buffer, layout) for buffer, (layout, _) in zip(new, program.results, strict=True)]
        return program.returned(tensors, results)

    def copies(self, place: int | str, argument: Any) -> bool:
        """Whether a part of a tensor may be copied for this argument: one that is written only where it is so alone and
        at once, since what is between its elements is put back too."""
        return place not in self.written or (EAGER.recording is None and self._is_alone(argument))

    def shifts(self, place: int | str, argument: Any) -> bool:
        """Whether where a tensor begins in its storage is an input of the program: of one that a recording writes, so
        that a loop over the parts of a tensor compiles its recording once."""
        return place in self.written and EAGER.recording is not None and not EAGER.captures and self._is_alone(argument)

    def _is_alone(self, argument: Any) -> bool:
        """Whether this tensor is all that is written, of an argument that is."""
        return len(self.written) == 2 and not (isinstance(argument, list) and len(argument) > 1)  # a place and a name

    def _quickly(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """A key of what is static of the arguments; then tensors, buffers, their values, numbers, and parts that are
        written in a copy. None for arguments of other kinds than most.

        This is most of what an operator costs, and so nothing is called here that can be written out. What stands for
        an argument begins with a type, or with a size or dtype, so that no two calls have the same key."""
        key: list[Any] = [torch.get_default_dtype(), torch.get_float32_matmul_precision()]
        tensors: list[Tensor | None] = []
        buffers: list[Buffer] = []
        places: dict[Buffer, int] = {}
        values: list[Any] = []
        numbers: list[Number] = []
        parts: list[_WrittenPart] = []
        for name, argument in kwargs.items():
            if name in self.numbers or type(argument) not in _STATIC:
                return None
            key += (str, name, argument)
        for place, argument in enumerate(args):
            elements: Sequence[Any] = (argument,)
            if type(argument) is list:
                if (whole := _whole(argument, places)) is not None:
                    own, own_values, form = whole
                    key.append(form)
                    tensors += argument
                    buffers += own
                    values += own_values
                    continue
                key += (list, len(argument))
                elements = argument
            for x in elements:
                kind = type(x)
                if kind in _TENSORS:
                    try:
                        buffer = x.untyped_storage().buffer
                    except (AttributeError, NotImplementedError):
                        return None
                    dtype, shape, value = buffer.dtype, x.shape, buffer.value
                    if x.dtype is not dtype or dtype in _COMPLEX:
                        return None
                    if value is None:
                        key.append(Buffer)  # that was never written
                    if shape == buffer.shape and x.is_contiguous():
                        key += (shape, dtype)
                    elif self.copies(place, argument) and (copy := _copied_part(x, buffer)) is not None:
                        key += (dtype, shape, x.stride(), copy.shape)
                        if place in self.written:
                            parts.append(_WrittenPart(buffer, copy, x.storage_offset()))
                        buffer, value = copy, copy.value
                    elif self.shifts(place, argument) and _is_part(x, buffer):
                        key += (dtype, shape, x.stride(), None, buffer.shape)
                        numbers.append((torch.int64, x.storage_offset()))
                    else:
                        key += (dtype, shape, x.stride(), x.storage_offset(), buffer.shape)
                    at = places.setdefault(buffer, len(buffers))
                    if at == len(buffers):
                        buffers.append(buffer)
                        values.append(value)
                    else:
                        key.append(at)
                    tensors.append(x)
                elif kind in _NUMBERS and place in self.numbers:
                    if kind is int and not -(2**31) <= x < 2**31:
                        return None
                    key.append(kind)
                    numbers.append((_NUMBERS[kind], x))
                    tensors.append(None)
                elif kind in _STATIC:
                    key += (kind, x)
                elif kind is float:
                    key += (kind, repr(x))  # no NaN is another, and 0.0 is not -0.0
                else:
                    return None
        return tuple(key), tensors, buffers, values, numbers, parts


def _whole(tensors: Sequence[Any], places: dict[Buffer, int]) -> tuple[list[Buffer], list[Any], tuple[Any, ...]] | None:
    """Buffers and values of a list of tensors of one dtype, each the whole of a storage that is nobody else's, and what
    stands for them in a key; `places` grows by them. None for other lists.

    It says the same as the loop over elements in `Operation._quickly`, for what optimizers pass, in a third of the
    time: it does one thing to all tensors after the other, without a line of Python for each."""
    if len(tensors) < 2 or not _TENSORS.issuperset(map(type, tensors)):
        return None
    try:
        buffers = [x.untyped_storage().buffer for x in tensors]
    except (AttributeError, NotImplementedError):
        return None
    dtype, shapes, values = buffers[0].dtype, [x.shape for x in tensors], [x.value for x in buffers]
    if (
        dtype in _COMPLEX
        or {x.dtype for x in tensors} != {dtype}
        or {x.dtype for x in buffers} != {dtype}
        or shapes != [x.shape for x in buffers]
        or False in map(Tensor.is_contiguous, tensors)
        or type(None) in map(type, values)
    ):
        return None
    before = len(places)
    more = dict(zip(buffers, range(before, before + len(buffers)), strict=True))
    if len(more) < len(buffers) or not places.keys().isdisjoint(more):
        return None
    places.update(more)
    return buffers, values, (list, dtype, *shapes)


class _Read:
    """An operator's arguments: its tensors by storage, its numbers, and a key of what is static of them."""

    def __init__(self, operation: Operation, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.operator = operation.operator
        self.parts: list[_WrittenPart] = []
        self.tensors: list[Tensor | None] = []
        self.buffers: list[Buffer] = []
        self.operands: list[tuple[Any, ...]] = []  # the fields of `Operand`
        self.numbers: list[Number] = []
        self.replaced: dict[int | str, Any] = {}  # arguments that are numbers, or lists of them -> their operands
        self._places: dict[Buffer, int] = {}
        given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        key = []
        for name, x in given:
            self._writes, self._copies = name in operation.written, operation.copies(name, x)
            self._shifts = operation.shifts(name, x)
            key.append((name, self._number(name, x) if name in operation.numbers else self._part(x)))
        self.key = tuple(key), torch.get_default_dtype(), torch.get_float32_matmul_precision()

    def _part(self, argument: Any) -> Any:
        """What stands for an argument in the key."""
        kind = type(argument)
        if kind is int or argument is None:
            return argument
        if isinstance(argument, Tensor):
            return self._tensor(argument)
        if isinstance(argument, (list, tuple)):
            return tuple([self._part(each) for each in argument])
        if kind is float or kind is complex:
            return kind, repr(argument)  # 1.0 is 1 for a dictionary, and no NaN is another
        return kind, argument

    def _number(self, place: int | str, argument: Any) -> Any:
        """What stands in the key for an argument that is an input of the program, if it is a number or some."""
        if isinstance(argument, (list, tuple)) and argument and all(type(each) in _NUMBERS for each in argument):
            first = len(self.operands)
            parts = tuple([self._operand(each) for each in argument])
            self.replaced[place] = [Given(first + i) for i in range(len(parts))]
            return parts
        if type(argument) not in _NUMBERS:
            return self._part(argument)
        self.replaced[place] = Given(len(self.operands))
        return self._operand(argument)

    def _operand(self, number: float) -> Any:
        dtype = _NUMBERS[type(number)]
        if type(number) is int and not -(2**31) <= number < 2**31:
            dtype, number = torch.float64, float(number)
            if not any(operand[1].is_floating_point for operand in self.operands):
                raise OverflowError(f"{self.operator}: {number:.0f} does not fit 32 bits, in which tpu carries int64")
        self.numbers.append((dtype, number))
        operand = (-1, dtype, (), (), 0, (), dtype, True, False)
        self.operands.append(operand)
        self.tensors.append(None)
        return operand

    def _tensor(self, tensor: Tensor) -> Any:
        dtype = tensor.dtype
        if dtype in _COMPLEX and tensor.device.type == "tpu":
            tensor = resolved(tensor)
        try:
            buffer = tensor.untyped_storage().buffer
        except (AttributeError, NotImplementedError):
            moved = self._moved(tensor)
            if moved is None:
                return self.operands[-1]
            tensor, buffer = moved, buffer_of(moved)
        # A view of another dtype, which the program makes of the storage's elements.
        is_other = buffer.dtype is not dtype and is_reinterpreted(buffer.dtype, dtype)
        if buffer.dtype is not dtype and not is_other:
            buffer.reinterpret(dtype)
        size, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        if self._copies and not is_other and (copy := _copied_part(tensor, buffer)) is not None:
            if self._writes:
                self.parts.append(_WrittenPart(buffer, copy, offset))
            buffer, offset = copy, 0
        shifted = self._shifts and not is_other and _is_part(tensor, buffer)
        if shifted:
            self.numbers.append((torch.int64, offset))
            offset = 0
        place = self._places.setdefault(buffer, len(self.buffers))
        if place == len(self.buffers):
            self.buffers.append(buffer)
        is_set = buffer.value is not None
        operand = (place, dtype, size, stride, offset, buffer.shape, buffer.dtype, is_set, shifted)
        self.operands.append(operand)
        self.tensors.append(tensor)
        return operand

    def _moved(self, tensor: Tensor) -> Tensor | None:
        """A tensor that is not on the device, on it; None where it became a number, the last operand.

        Raises:
            RuntimeError: the operator takes no such tensor.
        """
        if tensor.device.type == "tpu":
            buffer_of(tensor)  # says that it has no contents
        if tensor.dim() == 0 and tensor.device.type == "cpu":
            self.numbers.append((tensor.dtype, tensor.item()))
            self.operands.append((-2, tensor.dtype, (), (), 0, (), tensor.dtype, True, False))
            self.tensors.append(tensor)
            return None
        if self.operator not in _TAKES_CPU_INDICES or tensor.device.type != "cpu":
            raise RuntimeError(
                f"{self.operator}: expected all tensors to be on the same device, but found one on "
                f"{tensor.device} and one on tpu; `.to(device)` moves it"
            )
        return tensor.to("tpu")


class _WrittenPart(NamedTuple):
    """A part of a storage that an operator writes in a copy."""

    storage: Buffer
    copy: Buffer
    offset: int


def _copied_part(tensor: Tensor, buffer: Buffer) -> Buffer | None:
    """From the first to the last element of `tensor`, as storage of its own, where another place in the old one would
    be another program: a loop over the parts of a tensor is to compile its operators once. None where it begins where
    its storage does, or that is still to be made, in which case code, not data, says where it begins."""
    offset = tensor.storage_offset()
    if not offset or not buffer.is_made or EAGER.captures or not tensor.numel():
        return None
    length = span(tensor.shape, tensor.stride())
    return Buffer(part(buffer.array, offset, length), (length,), buffer.dtype)


def _crosses(lists: Sequence[Any]) -> bool:
    """Whether what is written to an element of the first list may be read, or written once more, for a later one."""
    first = [buffer_of(tensor) for tensor in lists[0]]
    places = {id(buffer): place for place, buffer in enumerate(first)}
    if len(places) < len(first):
        return True
    for argument in lists[1:]:
        alone = isinstance(argument, Tensor)
        for place, x in enumerate([argument] if alone else argument if isinstance(argument, (list, tuple)) else []):
            if isinstance(x, Tensor) and x.device.type == "tpu":
                other = places.get(id(buffer_of(x)))
                if other is not None and (alone or other != place):
                    return True
    return False


def _is_part(tensor: Tensor, buffer: Buffer) -> bool:
    """Whether there is more of the storage before its first element or after its last."""
    return tensor.numel() > 0 and span(tensor.shape, tensor.stride()) < math.prod(buffer.shape)


@functools.cache
def operation(operator: torch._ops.OpOverload) -> Operation:
    """The operator as it is called on the device."""
    return Operation(operator)


def call(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Compute an operator that neither moves bytes between devices nor returns a view.

    Raises:
        LoweringError: it has no lowering to XLA.
    """
    return operation(operator)(*args, **kwargs)


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
    moved, named = tree_map(_to_cpu, (args, kwargs))
    results = tree_map(lambda x: x.to("tpu") if isinstance(x, Tensor) else x, operator(*moved, **named))
    outs = [kwargs[argument.name] for argument in operator._schema.arguments if argument.is_out]
    if not outs:
        return results
    for out, result in zip(outs, tree_leaves(results), strict=True):
        out.resize_(result.shape).copy_(result)
    return outs[0] if len(outs) == 1 else tuple(outs)


def _to_cpu(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.cpu()
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _number_arguments(operator: torch._ops.OpOverload) -> frozenset[int | str]:
    """Places and names of the arguments that are inputs of the program where they are Python numbers: tensors by the
    schema, which PyTorch hands a kernel as numbers, those that `scalars.py` and `foreach.py` know, and
    learning rates."""
    changing = {changing_number(operator), *foreach.NUMBERS.get(foreach.base_of(operator) or "", ())}
    changing |= {"lr"} if operator in FUSED else set()
    return frozenset(
        each
        for place, argument in enumerate(operator._schema.arguments)
        for each in (place, argument.name)
        if isinstance(argument.type, torch.TensorType) or argument.name in changing
    )


def _written_arguments(operator: torch._ops.OpOverload) -> frozenset[int | str]:
    """Places and names of those that the operator writes."""
    return frozenset(
        each
        for place, argument in enumerate(operator._schema.arguments)
        for each in (place, argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _trace(read: _Read, args: Sequence[Any], kwargs: dict[str, Any]) -> OperatorProgram | DataDependentError:
    numbers = {given.place for each in read.replaced.values() for given in tree_leaves(each, is_leaf=is_given)}
    tensors = iter(i for i in range(len(read.tensors)) if i not in numbers)

    def template(x: Any) -> Any:
        if isinstance(x, Tensor):
            return Given(next(tensors))
        return torch.device("cpu") if isinstance(x, torch.device) else x

    def argument(place: int | str, x: Any) -> Any:
        return read.replaced[place] if place in read.replaced else tree_map(template, x)

    args = tuple(argument(place, x) for place, x in enumerate(args))
    kwargs = {name: argument(name, x) for name, x in kwargs.items()}
    operands = [
        Operand(array, dtype, View(tuple(size), stride, offset), *storage)
        for array, dtype, size, stride, offset, *storage in read.operands
    ]
    try:
        return OperatorProgram(read.operator, _computing(read), args, kwargs, operands)
    except DataDependentError as error:
        return error


def _computing(read: _Read) -> Callable[..., Any]:
    """The operator as a function that takes tensors for what `read` has replaced."""
    operator = read.operator
    if foreach.base_of(operator) is not None:
        return foreach.over_lists(operator)
    if operator in FUSED:
        return FUSED[operator]
    changing = changing_number(operator)
    places = {argument.name: place for place, argument in enumerate(operator._schema.arguments)}
    if changing is not None and (changing in read.replaced or places[changing] in read.replaced):
        return with_tensor(operator)
    return COMPOSED.get(operator, operator)
