"""A step of a user's own training loop as one program.

    @wholestep.capture_step
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

The first call runs as always: optimizers make their state. The second one is recorded, and from then on calls run what
was recorded, without any Python: parameters, buffers, gradients and optimizer state are read, and replaced, as the
recorded call did it. The third call is recorded once more and compared: what differs, a number of Python's or data from
the CPU, would never change again, and is an error. Where modules or optimizers are set otherwise, it all starts anew.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from wholestep.device.buffer import Buffer, buffer_of, over_array, view_of
from wholestep.device.captured_recording import CapturedRecording, NoWritesOnCpu
from wholestep.device.eager import EAGER
from wholestep.device.random import GENERATOR
from wholestep.device.strides import View, part, span
from wholestep.device.surroundings import Surroundings, global_settings
from wholestep.errors import GraphError

_LOG = logging.getLogger("wholestep")

# References to a buffer in a loop over a plan's buffers, if nothing else holds it: the variable, the argument of
# `getrefcount`, and two lists.
_ALONE = 4


def capture_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step`, which from its third call on is one program, for each structure, shape and dtype of its arguments.

    Args:
        step: reads and writes tensors of the `tpu` device; data that changes comes as an argument, numbers that change
            (a learning rate) are tensors on the device. Its results have no gradient.

    Raises:
        GraphError: a recorded call reads a value, writes into a CPU tensor, or differs from the one before in what
            cannot change.
    """
    plans: dict[Any, _Plan | None] = {}
    in_place: set[Any] = set()
    programs: dict[Any, Callable[..., Any]] = {}
    told: set[str] = set()

    @functools.wraps(step)
    def captured(*args: Any, **kwargs: Any) -> Any:
        if EAGER.captures:  # a part of another step
            return step(*args, **kwargs)
        given, spec = tree_flatten((args, kwargs))
        # A batch of a data set, say: where it lies does not matter, unless the step writes there or returns it.
        leaves = [_whole(leaf) for leaf in given]
        key = _key(leaves, spec)
        if key in in_place:
            leaves, key = given, (True, _key(given, spec))
        if (known := plans.get(key)) is not None:
            change = known.surroundings.change()
            if change is not None and (what := change.partition(" (from ")[0]) not in told:
                told.add(what)
                _LOG.warning(
                    "a captured step starts anew, for another %s; what changes often is to be an argument, or a tensor "
                    "on the device",
                    change,
                )
            if change is not None or known.is_stale():
                del plans[key]
        if key not in plans:
            plans[key] = None
            parts = [buffer_of(one) for one, copy in zip(given, leaves, strict=True) if copy is not one]
            before = [buffer.value for buffer in parts]
            results = step(*args, **kwargs)
            returned = {id(buffer_of(x)) for x in tree_leaves(results) if _is_ours(x)}
            if any(b.value is not value or id(b) in returned for b, value in zip(parts, before, strict=True)):
                in_place.add(key)
            return tree_map(_detached, results)
        plan = plans[key]
        if plan is None or not plan.is_checked:
            recorded, results = _record(step, leaves, spec)
            recorded.program = programs.setdefault(recorded.key, recorded.program)
            if plan is not None:
                try:
                    plan.check(recorded)
                except BaseException:
                    recorded.recording.undo()
                    del plans[key]
                    raise
                recorded.is_checked = True
                for change in recorded.surroundings.own_changes:
                    _LOG.warning("a captured step changes %s, which later calls do not do", change)
            plans[key] = recorded
            recorded.run_first()
            return results
        return plan.replay(leaves)

    return captured


@dataclass(frozen=True)
class _Result:
    """A tensor that the step returns.

    Attributes:
        value: of the program, that its storage holds; None where the storage was there before.
        argument: the leaf of the arguments whose storage it is.
        tensor: the one that was there before, if it is no argument's.
    """

    value: int | None
    dtype: torch.dtype
    view: View
    argument: int | None
    tensor: Tensor | None


class _Plan:
    """A recorded step, compiled.

    Attributes:
        key: what makes two of them one program.
        program: that.
        is_checked: whether the call after the recorded one did the same.
    """

    def __init__(
        self,
        recording: CapturedRecording,
        surroundings: Surroundings,
        leaves: Sequence[Any],
        spec: TreeSpec,
        results: list[Any],
    ) -> None:
        """
        Args:
            recording: what the step did.
            surroundings: modules and optimizers with which it did so.
            leaves: of its arguments.
            spec: of what it returned.
            results: its leaves; tensors as `_Result`.
        """
        self.recording, self.surroundings = recording, surroundings
        self.spec, self.results = spec, results
        self.is_checked = False
        self._watched: list[Buffer] = []
        held = {buffer.place: buffer for buffer in recording.live()}
        self._forms = {place: (buffer.shape, buffer.dtype) for place, buffer in held.items()}
        returned = {result.value for result in results if isinstance(result, _Result)}
        self._places = sorted({*held, *(place for place in returned if place is not None)})
        self._kept = {place: weakref.ref(buffer) for place, buffer in held.items() if place not in returned}
        # Those that the step makes; what it writes into gradients that were there is kept as of any other tensor.
        gradients = [
            (leaf, _described(leaf.grad, recording, {})) for leaf in recording.leaves.values() if _is_ours(leaf.grad)
        ]
        self._gradients = [(leaf, gradient) for leaf, gradient in gradients if gradient.value in self._kept]
        arguments = _arguments(leaves)
        self._take_gradients_of_arguments(leaves, gradients)
        self._dtypes = [buffer.dtype for buffer in recording.sources]
        self._arguments = [arguments.get(id(buffer)) for buffer in recording.sources]
        self._written = {place: arguments[id(buffer)] for place, buffer in held.items() if id(buffer) in arguments}
        written = {id(buffer) for buffer in held.values()}
        self._donated = is_donated = [
            id(buffer) in written and at is None for buffer, at in zip(recording.sources, self._arguments, strict=True)
        ]
        self.key = recording.key(self._places), tuple(self._arguments), tuple(self._donated)
        run = recording.function(self._places)

        def program(words: Any, numbers: Any, donated: list[jax.Array], kept: list[jax.Array]) -> list[jax.Array]:
            gone, stay = iter(donated), iter(kept)
            return run(words, numbers, *(next(gone) if each else next(stay) for each in is_donated))

        self.program = jax.jit(program, donate_argnums=2)
        self._words, self._numbers, *_ = recording.arguments()

    def _take_gradients_of_arguments(self, leaves: Sequence[Any], gradients: Sequence[tuple[Tensor, _Result]]) -> None:
        """Those of tensors that the step is given: each call's own.

        Raises:
            GraphError: an argument had a gradient before.
        """
        places = {id(leaf): i for i, leaf in enumerate(leaves) if _is_ours(leaf)}
        own = [(places[id(leaf)], gradient) for leaf, gradient in gradients if id(leaf) in places]
        if any(gradient.value is None for _, gradient in own):
            raise GraphError(
                "a captured step adds to a gradient that its argument has already, which would be another one in the "
                "next call: set it to None before"
            )
        self._gradients = [(leaf, gradient) for leaf, gradient in self._gradients if id(leaf) not in places]
        self._gradients_of_arguments = own
        own_places = {gradient.value for _, gradient in own}
        self._kept = {place: buffer for place, buffer in self._kept.items() if place not in own_places}

    def check(self, again: _Plan) -> None:
        """Compare a second recording with this one.

        Raises:
            GraphError: it is another.
        """
        before, now = self.recording.entries, again.recording.entries
        for first, second in zip(before, now, strict=False):
            if (first.program, first.inputs) != (second.program, second.inputs):
                raise GraphError(
                    f"{second.line}: {second.program.operator} is not what the call before did here; a captured step "
                    "does the same in every call"
                )
        if len(before) != len(now) or self.key != again.key:
            raise GraphError(
                "a captured step did not do the same in two calls: it called other operators or left others behind"
            )
        self._compare_numbers(again)
        for ours, theirs, argument in zip(
            self.recording.sources, again.recording.sources, again._arguments, strict=True
        ):
            if argument is None and ours is not theirs and not _equal(ours, theirs):
                raise GraphError(
                    "a captured step reads a tensor that is another one in each call, as is data moved from the CPU "
                    "inside of it, or what is given to `x.data = ...`: pass it as an argument, write x.data.copy_(...)"
                )

    def _compare_numbers(self, again: _Plan) -> None:
        mine, theirs = iter(self.recording.numbers), iter(again.recording.numbers)
        for entry in again.recording.entries:
            for _ in range(entry.program.numbers):
                before, now = next(mine), next(theirs)
                if before != now and not (before[1] != before[1] and now[1] != now[1]):
                    raise GraphError(
                        f"{entry.line}: {entry.program.operator} was given {before[1]:g} and then {now[1]:g}; a "
                        "captured step keeps its numbers: make it a tensor on the device (for an optimizer, "
                        "capturable=True and lr=torch.tensor(...))"
                    )

    def run_first(self) -> None:
        """Run it for the call that was recorded: from what buffers held before."""
        # None is donated: others may hold what their buffers, which look ahead already, do not.
        arrays = [jnp.copy(x) if donated else x for x, donated in zip(self.recording.given, self._donated, strict=True)]
        values = dict(zip(self._places, self._run(arrays), strict=True))
        for buffer in self.recording.live():
            buffer.value = values[buffer.place]
        self.recording.given.clear()
        # What the step itself moves from the CPU is held by nothing else from the start.
        self._watched = [
            buffer
            for buffer, argument in zip(self.recording.sources, self._arguments, strict=True)
            if argument is None and sys.getrefcount(buffer) > _ALONE
        ]

    def is_stale(self) -> bool:
        """Whether a tensor that it reads was replaced since, by `load_state_dict` of an optimizer or a write of `data`:
        no tensor holds its buffer any more; or one of the CPU, that it copies, was written."""
        replaced = any(sys.getrefcount(buffer) <= _ALONE for buffer in self._watched)
        return replaced or any(tensor._version != version for tensor, version in self.recording.moved)

    def run(self, leaves: Sequence[Any]) -> list[jax.Array]:
        """Run it for these leaves of arguments, and let what it writes hold its values; all that it gives."""
        arrays = []
        for buffer, dtype, argument in zip(self.recording.sources, self._dtypes, self._arguments, strict=True):
            source = buffer if argument is None else buffer_of(leaves[argument])
            if source.dtype is not dtype:  # it was read as another
                source.reinterpret(dtype)
            arrays.append(source.array)
        return self._run(arrays)

    def _run(self, arrays: list[jax.Array]) -> list[jax.Array]:
        counters = EAGER.counters
        counters.recordings += 1
        counters.operators += len(self.recording.entries)
        counters.fused += len(self.recording.entries)
        donated, kept = [], []
        for place, is_donated in enumerate(self._donated):
            if not is_donated:
                kept.append(arrays[place])
            else:
                # Held by its buffer and `arrays` alone: nobody else would miss it.
                is_free = sys.getrefcount(arrays[place]) <= 3
                donated.append(arrays[place] if is_free else jnp.copy(arrays[place]))
        if self.recording.draws:
            self._words = np.stack([GENERATOR.draw() for _ in self.recording.draws])
        values = self.program(self._words, self._numbers, donated, kept)
        for place, value in zip(self._places, values, strict=True):
            holder = None if place in self._written else self._kept.get(place)
            buffer = None if holder is None else holder()
            if buffer is not None:
                buffer.hold(value, self._forms[place])
        return values

    def _give_gradients(self, values: dict[int, jax.Array], leaves: Sequence[Any]) -> None:
        """Let leaves whose gradient was dropped or replaced since have the one that the step gives them, and arguments
        theirs."""
        for place, gradient in self._gradients_of_arguments:
            assert gradient.value is not None
            leaves[place].grad = _seen(over_array(values[gradient.value], gradient.dtype), gradient.view)
        for leaf, gradient in self._gradients:
            assert gradient.value is not None
            holder = self._kept[gradient.value]()
            if holder is None or leaf.grad is None or buffer_of(leaf.grad) is not holder:
                leaf.grad = _seen(over_array(values[gradient.value], gradient.dtype), gradient.view)
                self._kept[gradient.value] = weakref.ref(buffer := buffer_of(leaf.grad))
                self._forms[gradient.value] = buffer.shape, buffer.dtype

    def replay(self, leaves: Sequence[Any]) -> Any:
        """The step's results, in new tensors."""
        values = dict(zip(self._places, self.run(leaves), strict=True))
        for place, argument in self._written.items():
            buffer_of(leaves[argument]).value = values[place]
        self._give_gradients(values, leaves)
        storages: dict[int, Tensor] = {}
        results = [
            self._result(leaf, leaves, values, storages) if isinstance(leaf, _Result) else leaf for leaf in self.results
        ]
        return tree_unflatten(results, self.spec)

    def _result(
        self, result: _Result, leaves: Sequence[Any], values: dict[int, jax.Array], storages: dict[int, Tensor]
    ) -> Tensor:
        if result.argument is not None:
            return leaves[result.argument].detach().as_strided(*result.view)
        if result.value is None:
            assert result.tensor is not None
            return result.tensor
        whole = storages.get(result.value)
        if whole is None:
            whole = storages[result.value] = over_array(values[result.value], result.dtype)
        return _seen(whole, result.view)


def _seen(whole: Tensor, view: View) -> Tensor:
    return whole if view == view_of(whole) else whole.as_strided(*view)


def _record(step: Callable[..., Any], leaves: Sequence[Any], spec: TreeSpec) -> tuple[_Plan, Any]:
    """Run the step's Python and record what it calls."""
    args, kwargs = tree_unflatten(leaves, spec)
    recording, surroundings = CapturedRecording(), Surroundings(step, args, kwargs)
    try:
        with EAGER.recorded(recording), NoWritesOnCpu(), surroundings.seen():
            returned = tree_map(_of_its_own_dtype, step(*args, **kwargs))
        flat, result_spec = tree_flatten(returned)
        arguments = _arguments(leaves)
        results = [_described(leaf, recording, arguments) if _is_ours(leaf) else leaf for leaf in flat]
        plan = _Plan(recording, surroundings, leaves, result_spec, results)
    except BaseException:
        recording.undo()
        raise
    return plan, tree_map(_detached, returned)


def _of_its_own_dtype(x: Any) -> Any:
    """A copy of what is a view of another dtype, as `view_as_real`."""
    return x.clone() if _is_ours(x) and x.untyped_storage().buffer.dtype is not x.dtype else x


def _described(tensor: Tensor, recording: CapturedRecording, arguments: dict[int, int]) -> _Result:
    buffer, view = buffer_of(tensor), view_of(tensor)
    if id(buffer) in arguments:
        return _Result(None, tensor.dtype, view, arguments[id(buffer)], None)
    sources = {id(source) for source in recording.sources}
    if buffer.value is recording and id(buffer) not in sources:
        return _Result(buffer.place, tensor.dtype, view, None, None)
    return _Result(None, tensor.dtype, view, None, tensor.detach())


def _is_ours(x: Any) -> bool:
    return isinstance(x, Tensor) and x.device.type == "tpu"


def _arguments(leaves: Sequence[Any]) -> dict[int, int]:
    """The first leaf of each buffer, by identity."""
    return {id(buffer_of(leaf)): i for i, leaf in reversed(list(enumerate(leaves))) if _is_ours(leaf)}


def _whole(leaf: Any) -> Any:
    """A tensor that is a part of a larger one in storage of its own, from its first element to its last; anything else
    itself."""
    if not _is_ours(leaf) or leaf.requires_grad or not leaf.numel():
        return leaf
    buffer, view = buffer_of(leaf), view_of(leaf)
    if math.prod(buffer.shape) == leaf.numel():
        return leaf
    elements = part(buffer.array, view.offset, span(view.size, view.stride))
    if leaf.is_contiguous():  # and so like a tensor that is whole from the start
        return over_array(elements.reshape(view.size), buffer.dtype)
    return over_array(elements, buffer.dtype).as_strided(view.size, view.stride, 0)


def _key(leaves: Sequence[Any], spec: TreeSpec) -> Any:
    """What one program serves: the leaves' signatures, and which share a storage."""
    first = _arguments(leaves)
    return (
        spec,
        global_settings(),
        tuple((_signature(x), first[id(buffer_of(x))] if _is_ours(x) else None) for x in leaves),
    )


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, (float, complex)):
        return type(leaf), repr(leaf)  # no NaN is another, and 0.0 is not -0.0
    if not isinstance(leaf, Tensor):
        if type(leaf).__hash__ is None:
            raise GraphError(
                f"a captured step is given a {type(leaf).__name__}: it takes tensors, numbers and strings, in tuples, "
                "lists and dictionaries"
            )
        return type(leaf), leaf
    if not _is_ours(leaf):
        raise GraphError(f"a captured step is given a tensor on {leaf.device}: move it to the tpu device first")
    buffer = buffer_of(leaf)
    return leaf.dtype, view_of(leaf), buffer.shape, leaf.requires_grad, leaf.is_leaf and leaf.grad is None


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


def _equal(first: Buffer, second: Buffer) -> bool:
    return first.dtype == second.dtype and bool(jnp.array_equal(first.array, second.array, equal_nan=True))
