"""One call of a PyTorch operator as a program: read the views that it is given, compute, write what it writes.

The operator is traced on fake tensors and lowered exactly as a captured step is; what comes before and after, the
views, is part of the program, so that XLA fuses it.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import getitem
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from torch import Tensor, fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from wholestep.device.bits import reinterpreted
from wholestep.device.buffer import Layout
from wholestep.device.refusals import check_integers
from wholestep.device.scalars import HALVES, number_dtype
from wholestep.device.strides import View, part, put, take, with_part
from wholestep.graph.decompositions import decompositions
from wholestep.graph.random import number_draws
from wholestep.graph.step import graph_module
from wholestep.graph.trace import trace
from wholestep.xla.dtypes import carried
from wholestep.xla.function import GraphFunction
from wholestep.xla.lowering import LOWERINGS
from wholestep.xla.lowering.matmul import with_precision

aten = torch.ops.aten


_FEW_BITS = {torch.uint8, torch.int8, torch.int16}

# What JAX says at the end of its errors of its own frames.
_OF_JAX = "-" * 20

_TRACER = ThreadPoolExecutor(1, "wholestep trace")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What PyTorch raises for wrong shapes is not logged at length besides."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


class Operand(NamedTuple):
    """A tensor that an operator is given.

    Attributes:
        array: which of the program's arrays its storage is; -1 for a Python number, -2 for a CPU tensor without
            dimensions.
        dtype: of the tensor.
        view: where it lies in the storage.
        shape: of the array.
        held: the dtype of the array's elements; another than the tensor's, of whose bytes it is a view.
        is_set: whether there is one; what was never written is no input.
        is_shifted: whether the view begins where an input says, a number, and not where its storage does.
    """

    array: int
    dtype: torch.dtype
    view: View
    shape: tuple[int, ...]
    held: torch.dtype
    is_set: bool
    is_shifted: bool


class Given(NamedTuple):
    """In what an operator returns: one of the tensors that it was given."""

    place: int


class OperatorProgram:
    """An operator for operands of these shapes.

    Attributes:
        operator: what it computes.
        written: the operands that it writes, in the order of its first outputs.
        writes: the arrays that these are in, and that it replaces.
        resizes: operands to which `out=` must give another size first, and which.
        results: layout and dtype of each new tensor, in the order of the outputs after them.
        returns: what the operator returns: a `Given` for an operand, a number for a result, anything else for itself;
            where it is no single result, as leaves of `spec`.
        single: size and dtype of the result, where it is a single new tensor, dense, and nothing is written.
        draws: whether it draws random numbers.
        numbers: how many numbers are inputs: operands, and where operands begin.
        has_run: whether it was compiled by itself.
    """

    def __init__(
        self,
        operator: torch._ops.OpOverload,
        compute: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        operands: Sequence[Operand],
    ) -> None:
        """Trace it.

        Args:
            operator: without views: what it returns is new or an argument that it writes.
            compute: the same, of tensors in place of its numbers.
            args: as it was called, with `Given` in place of tensors.
            kwargs: the same.
            operands: what these stand for.

        Raises:
            GraphError: its results' shapes depend on values.
            LoweringError: it has no lowering, or one that gives something else than PyTorch.
            NotImplementedError: PyTorch has it for floating-point numbers alone, and these are integers.
            RuntimeError: it writes into an expanded tensor, or floating-point numbers into integers, or does not take
                tensors of these shapes.
        """
        self.operator = operator
        self._operands = operands
        # Now, since a recording may run after PyTorch's settings have changed.
        self._dtypes = [_dtype(operand, operands) for operand in operands]
        self._precision = torch.get_float32_matmul_precision()
        written, outs = _written(operator, args, kwargs), _written(operator, (), kwargs)
        if any(operands[i].array < 0 for i in written):
            raise RuntimeError(
                f"{operator}: writes into a CPU tensor what it computes of tpu tensors; move one of them"
            )
        outputs: list[Tensor] = []
        leaves: list[Any] = []

        def function(*given: Tensor) -> list[Tensor]:
            outputs.clear()
            leaves.clear()
            copies = [x.clone() if i in written else x for i, x in enumerate(given)]
            given_args, given_kwargs = _filled((args, kwargs), copies)
            result = compute(*given_args, **given_kwargs)
            flat, self.spec = tree_flatten(result)
            for leaf in flat:
                same = next((i for i in written if leaf is copies[i]), None)
                if same is not None:
                    leaves.append(Given(same))
                elif isinstance(leaf, Tensor):
                    leaves.append(len(outputs))
                    outputs.append(leaf)
                else:
                    leaves.append(leaf)
            self.resizes = [(i, copies[i].shape) for i in written if copies[i].shape != given[i].shape]
            for place, shape in self.resizes:
                if place not in outs:
                    raise does_not_fit(operator, given[place].shape, shape)
            self.results = [(Layout.of(x.shape, x.stride()), x.dtype) for x in outputs]
            return [*(copies[i] for i in written), *outputs]

        def on_cpu(tensors: Sequence[Tensor]) -> Any:
            given_args, given_kwargs = _filled((args, kwargs), tensors)
            return operator(*given_args, **given_kwargs)

        def traced() -> fx.GraphModule:
            check_integers(operator, on_cpu, self._dtypes, [operand.view.size for operand in operands])
            with _quiet():
                with FakeTensorMode():
                    self._widen_numbers(function)
                    fakes = self._fakes()
                    for place in written:
                        _check_written(operator, fakes[place], fakes)
                    # Where values decide, tracing says so.
                    with contextlib.suppress(DynamicOutputShapeException):
                        if compute is operator:
                            _check_size(operator, args, kwargs, fakes)
                            if _is_lowered(operator):
                                single = _single(operator, args, kwargs, fakes, function(*fakes))
                                if single is not None:
                                    return single
                return trace(function, fakes)

        # In a thread of its own: no mode that the caller is under, and no dispatch key that it excludes, is there.
        graph = _TRACER.submit(traced).result()
        self.written = written
        self._function = GraphFunction(graph)
        self.draws = self._function.draws
        self.numbers = sum(map(_is_number, operands))
        self.writes = list(dict.fromkeys(operands[i].array for i in written))
        self.leaves = leaves
        self._same = leaves[0].place if self.spec.is_leaf() and isinstance(leaves[0], Given) else None
        is_one = len(outputs) == 1 and leaves == [0] and self.spec.is_leaf() and not written
        layout, dtype = self.results[0] if is_one else (None, None)
        self.single = (layout.size, dtype) if layout is not None and layout.order is None else None
        self.has_run = False
        self.jitted = jax.jit(self.run)
        if not self.resizes:
            self._check()

    def _fakes(self) -> list[Tensor]:
        return [
            torch.empty_strided(operand.view.size, operand.view.stride, dtype=dtype)
            for operand, dtype in zip(self._operands, self._dtypes, strict=True)
        ]

    def _widen_numbers(self, function: Callable[..., Sequence[Tensor]]) -> None:
        """Take numbers beside integers of few bits as they are where the operator makes floats of both: `x / 300` of
        uint8 is no `x / 44`."""
        places = [i for i, operand in enumerate(self._operands) if operand.array == -1]
        wide = [torch.int64 if i in places and x in _FEW_BITS else x for i, x in enumerate(self._dtypes)]
        if wide == self._dtypes:
            return
        with contextlib.suppress(DynamicOutputShapeException):
            if all(result.is_floating_point() for result in function(*self._fakes())):
                self._dtypes = wide

    def run(
        self, *arrays: jax.Array | None, numbers: Sequence[jax.Array] = (), words: jax.Array | None = None
    ) -> list[jax.Array]:
        """The arrays that it writes, as they are then, and those of its results.

        Args:
            arrays: the storages of its operands; None for those that were never written.
            numbers: the operands that are numbers, and where those that are shifted begin.
            words: seed and number of the draw, uint32[2]; None where it draws nothing.
        """
        key = None if words is None else jax.random.fold_in(jax.random.key(words[0]), words[1])
        storages: dict[int, jax.Array] = {}
        for operand in self._operands:
            if operand.array >= 0 and operand.array not in storages:
                array = arrays[operand.array]
                storages[operand.array] = jnp.zeros(operand.shape, carried(operand.held)) if array is None else array
        rest = iter(numbers)
        inputs, starts = [], {}
        for place, (operand, dtype) in enumerate(zip(self._operands, self._dtypes, strict=True)):
            if operand.array < 0:
                inputs.append(next(rest).astype(carried(dtype)))
                continue
            elements = _as_seen(storages[operand.array], operand)
            if operand.is_shifted:
                starts[place] = next(rest)
                elements = part(elements, starts[place], operand.view.span)
            inputs.append(take(elements, operand.view))
        with with_precision(self._precision):
            outputs = self._function.interpret(key, *inputs)
        for place, value in zip(self.written, outputs, strict=False):
            operand = self._operands[place]
            array, view = operand.array, operand.view
            if place in starts:
                elements = put(part(storages[array], starts[place], view.span), view, value)
                storages[array] = with_part(storages[array], elements, starts[place])
            else:
                storages[array] = _as_held(put(_as_seen(storages[array], operand), view, value), operand)
        new = outputs[len(self.written) :]
        return [
            *(storages[array] for array in self.writes),
            *(
                value if layout.order is None else jnp.transpose(value, layout.order)
                for value, (layout, _) in zip(new, self.results, strict=True)
            ),
        ]

    def _check(self) -> None:
        """See now, and not when a recording runs, that XLA takes it."""
        arrays = {
            operand.array: jax.ShapeDtypeStruct(operand.shape, carried(operand.held)) if operand.is_set else None
            for operand in self._operands
            if operand.array >= 0
        }
        given: dict[str, Any] = {}
        if self.numbers or self.draws:
            dtypes = [torch.int64 if each.is_shifted else each.dtype for each in self._operands if _is_number(each)]
            given["numbers"] = [jax.ShapeDtypeStruct((), carried(dtype)) for dtype in dtypes]
            given["words"] = jax.ShapeDtypeStruct((2,), jnp.uint32) if self.draws else None
        try:
            self.jitted.eval_shape(*(arrays[place] for place in sorted(arrays)), **given)
        except OverflowError as error:
            raise OverflowError(f"{self.operator}: a number exceeds the 32 bits in which tpu carries int64") from error
        except (TypeError, ValueError) as error:  # JAX's own, of shapes and dtypes
            raise RuntimeError(f"{self.operator}: {str(error).partition(_OF_JAX)[0].strip()}") from error

    def returned(self, given: Sequence[Tensor], results: Sequence[Tensor]) -> Any:
        """What the operator returns, of these operands and new tensors."""
        if self._same is not None:
            return given[self._same]
        return tree_unflatten(
            [
                given[leaf.place] if isinstance(leaf, Given) else results[leaf] if type(leaf) is int else leaf
                for leaf in self.leaves
            ],
            self.spec,
        )


def _single(
    operator: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    fakes: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> fx.GraphModule | None:
    """The graph of an operator that has a lowering of its own: one node, which needs no tracing; None where it must.

    Args:
        outputs: of the operator for these fake tensors, written ones first.
    """
    functional = _returning(operator)
    assert functional is not None
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(len(fakes))]
    for node, fake in zip(nodes, fakes, strict=True):
        node.meta["val"] = fake
    given, named = _filled((args, kwargs), nodes)
    call = graph.call_function(functional, tuple(given), named)
    returns = functional._schema.returns
    if len(returns) == 1 and isinstance(returns[0].type, torch.TensorType):
        if operator is not functional:  # whose result may be of another dtype than what is written
            own_args, own_kwargs = _filled((args, kwargs), fakes)
            if functional(*own_args, **own_kwargs).dtype != outputs[0].dtype:
                return None
        call.meta["val"] = outputs[0]
        results = [call]
    elif (
        operator is functional
        and len(outputs) == len(returns)  # none is left out, as `output_mask` may ask
        and all(isinstance(each.type, torch.TensorType) for each in returns)
    ):
        call.meta["val"] = tuple(outputs)
        results = [graph.call_function(getitem, (call, i)) for i in range(len(returns))]
        for node, value in zip(results, outputs, strict=True):
            node.meta["val"] = value
    else:
        return None
    graph.output(results)
    number_draws(graph.nodes)
    return graph_module(torch.nn.Module(), graph)


def _check_size(
    operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any], fakes: Sequence[Tensor]
) -> None:
    """See that what is written has the size of what is computed: fake tensors would become larger, or not say."""
    functional = _returning(operator)
    if functional is None or functional is operator:
        return
    args, kwargs = _filled((args, kwargs), fakes)
    result = functional(*args, **kwargs)
    if isinstance(result, Tensor) and isinstance(args[0], Tensor) and result.shape != args[0].shape:
        raise does_not_fit(operator, args[0].shape, result.shape)


def does_not_fit(operator: torch._ops.OpOverload, shape: torch.Size, wider: torch.Size) -> RuntimeError:
    """What to say of a tensor that is to be written and is smaller than what is computed."""
    return RuntimeError(f"{operator}: output with shape {list(shape)} doesn't match the broadcast shape {list(wider)}")


def _is_lowered(operator: torch._ops.OpOverload) -> bool:
    functional = _returning(operator)
    return functional in LOWERINGS and functional not in decompositions()


def _returning(operator: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The operator that returns what this one writes into its first argument; itself, if it writes nothing."""
    if not operator._schema.is_mutable:
        return operator
    name = operator._schema.name.removeprefix("aten::")
    packet = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
    if packet is None:
        return None
    # Overloads have other names there: of `pow_.Tensor` it is `pow.Tensor_Tensor`.
    types = [str(x.type) for x in operator._schema.arguments]
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    same = (each for each in overloads if [str(x.type) for x in each._schema.arguments] == types)
    return next((each for each in same if not each._schema.is_mutable), None)


def _filled(arguments: Any, values: Sequence[Any]) -> Any:
    """A tree of arguments with these in place of what stands for them."""
    return tree_map(lambda x: values[x.place] if isinstance(x, Given) else x, arguments, is_leaf=is_given)


def is_given(x: Any) -> bool:
    """For `tree_map`, to which a `Given` is a tuple like any other."""
    return isinstance(x, Given)


def _as_seen(array: jax.Array, operand: Operand) -> jax.Array:
    """A storage's array as elements of the tensor's dtype."""
    if operand.held is operand.dtype:
        return array
    seen = reinterpreted(array, operand.held, operand.dtype)
    assert seen is not None
    return seen


def _as_held(array: jax.Array, operand: Operand) -> jax.Array:
    if operand.held is operand.dtype:
        return array
    held = reinterpreted(array, operand.dtype, operand.held)
    assert held is not None
    return held[: math.prod(operand.shape)].reshape(operand.shape)


def _is_number(operand: Operand) -> bool:
    """Whether it adds a number to the program's inputs."""
    return operand.array < 0 or operand.is_shifted


def _dtype(operand: Operand, operands: Sequence[Operand]) -> torch.dtype:
    if operand.array != -1:
        return operand.dtype
    others = [other for other in operands if other.array != -1]
    dtype = number_dtype(operand.dtype, [other.dtype for other in others])
    # One that 16 bits may not hold, beside a tensor that decides the result's dtype: the operator rounds it, if at all.
    wide = dtype in HALVES and any(other.dtype is dtype and other.view.size for other in others)
    return torch.float32 if wide else dtype


# Of these, PyTorch does not check for fake tensors that the result can be cast to the tensor that is written.
_CHECKED = {
    *(
        aten.add_.Tensor,
        aten.sub_.Tensor,
        aten.mul_.Tensor,
        aten.addcmul_.default,
        aten.addcdiv_.default,
        aten.pow_.Tensor,
        aten.remainder_.Tensor,
    ),
    *(aten.fmod_.Tensor, aten.atan2_.default),
}


def _check_written(operator: torch._ops.OpOverload, tensor: Tensor, operands: Sequence[Tensor]) -> None:
    _, result = elementwise_dtypes(*operands, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
    if operator in _CHECKED and not torch.can_cast(result, tensor.dtype):
        raise RuntimeError(f"{operator}: result type {result} can't be cast to the output type {tensor.dtype}")
    if tensor.numel() and any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise RuntimeError(
            f"{operator} writes into an expanded tensor, of which several elements are one in memory; clone() it first"
        )


def _written(operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[int]:
    """The operands that the operator writes, by its schema."""
    written: list[int] = []
    for place, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            values = value if isinstance(value, (list, tuple)) and not isinstance(value, Given) else [value]
            written += [each.place for each in values if isinstance(each, Given)]
    return written
