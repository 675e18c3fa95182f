"""A stack of layers as one loop forward and one loop backward.

While a module's forward is traced, the layers of a stack do not run. Each call only checks that it is what a loop body
can stand for: that it takes what the layer before returned, and otherwise what the first layer took. The last call puts
the loop into the graph. So this works for whatever code calls the layers, as long as it calls them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from wholestep.errors import GraphError
from wholestep.graph.layers import UnsuitableError, call_layer, empty_like, joint_graph, modes
from wholestep.graph.partition import Joint, Keep, partition
from wholestep.graph.random import number_draws, scope_of
from wholestep.graph.scan import record_loop
from wholestep.graph.stacks import Stack, Structure, difference, structure
from wholestep.graph.step import graph_module
from wholestep.graph.trace import trace_body

aten = torch.ops.aten

_TENSOR = object()


class NotLoopableError(GraphError):
    """A module does not call the layers of a stack as a loop would.

    Attributes:
        stack: which.
    """

    def __init__(self, stack: Stack, why: str) -> None:
        super().__init__(f"{why}; it cannot be looped")
        self.stack = stack


@dataclass(frozen=True)
class StackedTensor:
    """One parameter or buffer of every trip's layer at one position of the period.

    Attributes:
        name: of all of them together.
        position: of the layer in the period.
        name_in_layer: what it is called there.
        values: of all trips, `[trips, ...]`; of a parameter one device's shards.
        as_given: what a layer reads, from one trip's value.
    """

    name: str
    position: int
    name_in_layer: str
    values: Tensor
    as_given: Callable[[Tensor], Tensor]


@dataclass
class LoopedStack:
    """A stack in one trace of its module's forward.

    Attributes:
        stack: which layers.
        layers: all of them; the code of those of the first period is the body's.
        tensors: of all layers.
        keep: what the backward loop finds kept.
        axes: mesh axis name -> size.
        written: name of each buffer that the layers changed -> its values after the loop.
    """

    stack: Stack
    layers: Sequence[nn.Module]
    tensors: Sequence[StackedTensor]
    keep: Keep
    axes: Mapping[str, int]
    written: dict[str, Tensor] = field(default_factory=dict)
    _calls: int = 0
    _done: bool = False
    _modes: tuple[object, ...] = ()
    _structures: list[Structure] = field(default_factory=list)
    _first: list[Any] = field(default_factory=list)
    _spec: TreeSpec | None = None
    _result_spec: TreeSpec | None = None
    _previous: list[Tensor] = field(default_factory=list)
    _statics: list[Any] = field(default_factory=list)
    _links: dict[int, int] = field(default_factory=dict)
    _written: list[str] = field(default_factory=list)

    @property
    def paths(self) -> tuple[str, ...]:
        return self.stack.paths

    def call(self, index: int, *args: Any, **kwargs: Any) -> Any:
        if index != self._calls:
            self._refuse(f"{self.paths[index]} is called where {self.paths[self._calls]} is expected, out of order")
        if self._done:
            self._refuse(f"{self.paths[0]} is called more than once")
        self._check_layer(index)
        arguments, spec = tree_flatten((args, kwargs))
        if self._calls == 0:
            self._first, self._spec, self._modes = arguments, spec, modes()
        else:
            self._check(arguments, spec)
        self._calls += 1
        if self._calls < len(self.paths):
            return self._stand_in()
        self._calls, self._done = 0, True
        return self._loop()

    def _refuse(self, why: str) -> NoReturn:
        raise NotLoopableError(self.stack, why)

    def _check_layer(self, index: int) -> None:
        """See that the layer still is as the one of its position in the first period was when that was called."""
        if not self.tensors:
            self._refuse(f"{self.paths[0]} has no parameters and no buffers")
        now = structure(self.layers[index])
        if index < self.stack.period:
            self._structures.append(now)
            return
        first = index % self.stack.period
        what = difference(self._structures[first], now)
        if what is not None:
            self._refuse(f"when they are called, {self.paths[index]} is not like {self.paths[first]}: {what}")

    def check_complete(self) -> None:
        if self._calls:
            self._refuse(f"{self.paths[self._calls]} and those after it are not called")

    def _stand_in(self) -> Any:
        """Tensors like the layer's results, to recognize when the next layer is given them."""
        if self._result_spec is None:
            args, kwargs = tree_unflatten([empty_like(argument) for argument in self._first], self._spec)
            with disable_proxy_modes_tracing(), torch.no_grad():
                own = {t.name_in_layer: t.as_given(empty_like(t.values[0])) for t in self.tensors if not t.position}
                results, _ = self._call_layer(0, own, args, kwargs)
            flat, self._result_spec = tree_flatten(results)
            self._previous = [result for result in flat if isinstance(result, Tensor)]
            self._statics = [_TENSOR if isinstance(result, Tensor) else result for result in flat]
            if not all(result is None or result is _TENSOR for result in self._statics) or not all(
                result.is_floating_point() for result in self._previous
            ):
                self._refuse(f"{self.paths[0]} returns something else than tensors of floating point numbers")
        self._previous = [empty_like(result) for result in self._previous]
        for result in self._previous:
            result.stand_in_of = self.stack  # so that an error can tell whose it is, where something else reads it
        return self._nested(self._previous)

    def _nested(self, tensors: Sequence[Tensor]) -> Any:
        """A layer's results, from those that are tensors; the others are None."""
        given = iter(tensors)
        return tree_unflatten([next(given) if x is _TENSOR else x for x in self._statics], self._result_spec)

    def _check(self, arguments: list[Any], spec: TreeSpec) -> None:
        """See that this call's arguments are the last one's results and otherwise the first one's arguments."""
        path, first_path = self.paths[self._calls], self.paths[0]
        if modes() != self._modes:
            self._refuse(f"{path} is called with gradients or autocast set otherwise than for {first_path}")
        if spec != self._spec:
            self._refuse(f"{path} is called with other arguments than {first_path}")
        links: dict[int, int] = {}
        for position, (argument, first) in enumerate(zip(arguments, self._first, strict=True)):
            for k, result in enumerate(self._previous):
                if argument is result:
                    links[position] = k
            same = argument is first or (
                not isinstance(argument, Tensor) and type(argument) is type(first) and argument == first
            )
            if position not in links and not same:
                self._refuse(
                    f"argument {position} of {path} is neither what the layer before returned nor the very tensor that "
                    f"{first_path} was given (a parameter is another one each time it is read)"
                )
        if set(links.values()) != set(range(len(self._previous))):
            self._refuse(f"{path} is not given all that the layer before returned")
        if self._links and links != self._links:
            self._refuse(f"{path} takes what the layer before returned in other places")
        for position, k in links.items():
            first, result = self._first[position], self._previous[k]
            if (first.shape, first.dtype) != (result.shape, result.dtype):
                self._refuse(
                    f"{first_path} takes {first.dtype}{list(first.shape)} and returns "
                    f"{result.dtype}{list(result.shape)}",
                )
        self._links = links

    @cached_property
    def _constants(self) -> list[int]:
        """The arguments that are tensors which every layer is given."""
        return [i for i, argument in enumerate(self._first) if i not in self._links and isinstance(argument, Tensor)]

    def _loop(self) -> Any:
        """The loop itself; returns what the last layer would."""
        position_of = {k: position for position, k in self._links.items()}
        carry = [self._first[position_of[k]] for k in range(len(position_of))]
        constants = [self._first[i] for i in self._constants]
        stacked = [tensor.values for tensor in self.tensors]
        slices = [empty_like(values[0]).requires_grad_(values.requires_grad) for values in stacked]
        as_given = [tensor.as_given for tensor in self.tensors]
        options = {"scope": scope_of(self.stack.container, self.stack.start), "period": self.stack.period}
        if torch.is_grad_enabled():
            start = [empty_like(x).requires_grad_(True) for x in carry]  # what a later iteration is given requires it
            joint = joint_graph(
                self._run, [*start, *constants], slices, as_given, range(len(carry)), carry, len(carry), self.axes
            )
            self._number_draws(joint.module)
            results = list(_Loop.apply(_Halves.of(joint, self.keep), options, *carry, *stacked, *constants))
        else:

            def forward(*tensors: Tensor) -> list[Tensor]:
                first, own, rest = _cut(tensors, len(carry), len(stacked))
                return self._run([*first, *rest], [make(value) for make, value in zip(as_given, own, strict=True)])

            body = trace_body(forward, [*map(empty_like, carry), *slices, *map(empty_like, constants)])
            self._number_draws(body)
            results = record_loop(body, carry, stacked, constants, **options)
        self.written = dict(zip(self._written, results[len(carry) :], strict=True))
        return self._nested(results[: len(carry)])

    def _run(self, inputs: Sequence[Tensor], given: Sequence[Any]) -> list[Tensor]:
        """One period of layers: carry and constants, tensors of the layers -> new carry, new values of buffers."""
        carry = len(inputs) - len(self._constants)
        state, constants = list(inputs[:carry]), dict(zip(self._constants, inputs[carry:], strict=True))
        changed: dict[str, Tensor] = {}
        for position in range(self.stack.period):
            names = {t.name_in_layer: t.name for t in self.tensors if t.position == position}
            own = {
                tensor.name_in_layer: value
                for tensor, value in zip(self.tensors, given, strict=True)
                if tensor.position == position
            }
            arguments = [
                state[self._links[i]] if i in self._links else constants.get(i, argument)
                for i, argument in enumerate(self._first)
            ]
            results, written = self._call_layer(position, own, *tree_unflatten(arguments, self._spec))
            state = [result for result in tree_leaves(results) if isinstance(result, Tensor)]
            changed |= {names[name]: value for name, value in written.items()}
        self._written = list(changed)
        return [*state, *changed.values()]

    def _call_layer(self, position: int, own: dict[str, Any], args: Any, kwargs: Any) -> tuple[Any, dict[str, Tensor]]:
        try:
            return call_layer(self.layers[position], own, args, kwargs, for_others=True)
        except UnsuitableError as error:
            self._refuse(f"{self.paths[position]}: {error}")

    def _number_draws(self, body: fx.GraphModule) -> None:
        """Number each layer's draws on its own, as they are where layers are laid out."""
        for position, path in enumerate(self.paths[: self.stack.period]):
            inside = [n for n in body.graph.nodes if f"{n.meta.get('module', '')}.".startswith(f"{path}.")]
            number_draws(inside, position)


@dataclass(frozen=True)
class _Halves:
    """The bodies of both loops, and what they take.

    Attributes:
        forward: carry, tensors of the layers, constants -> new carry, new values of buffers, what is saved.
        backward: tangents of the carry, gradients of constants so far; what was saved, tensors of the layers;
            constants -> gradients of the carry, of the constants with this layer's added; of `trained`.
        carry: how many values are carried.
        written: how many buffers get new values; these come after the carry.
        tensors: how many tensors of the layers there are; `trained` of them, by index, have a gradient.
        saved: how many values pass from one to the other.
        constants: which constants have a gradient.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    carry: int
    written: int
    tensors: int
    saved: int
    constants: tuple[int, ...]
    trained: tuple[int, ...]

    @staticmethod
    def of(joint: Joint, keep: Keep) -> _Halves:
        halves, carry = partition(joint, keep, fenced=False), len(joint.carried)
        constants = tuple(i - carry for i in joint.differentiable if carry <= i < joint.inputs)
        trained = tuple(i - joint.inputs for i in joint.differentiable if i >= joint.inputs)
        backward = _adding(halves.backward, carry, len(constants))
        return _Halves(
            forward=halves.forward,
            backward=backward,
            carry=carry,
            written=joint.outputs - carry,
            tensors=joint.parameters,
            saved=halves.saved,
            constants=constants,
            trained=trained,
        )


def _adding(backward: fx.GraphModule, carry: int, constants: int) -> fx.GraphModule:
    """`backward`, taking sums after the carry's tangents and adding to them the gradients of constants."""
    graph = fx.Graph()
    inputs = backward.graph.find_nodes(op="placeholder")
    results = backward.graph.output_node().args[0]
    copies: dict[fx.Node, fx.Node] = {}
    grads = results[carry : carry + constants]
    sums = []
    for i, node in enumerate(inputs):
        if i == carry:
            sums = [graph.placeholder(f"sum_{k}") for k in range(constants)]
        copies[node] = graph.node_copy(node)
    for total, grad in zip(sums, grads, strict=True):
        total.meta = {"val": grad.meta["val"], "module": "", "backward": False}
    copied = graph.graph_copy(backward.graph, copies)
    added = []
    for total, grad in zip(sums, copied[carry : carry + constants], strict=True):
        added.append(graph.call_function(aten.add.Tensor, (total, grad)))
        added[-1].meta = {**total.meta, "backward": True}
    graph.output([*copied[:carry], *added, *copied[carry + constants :]])
    return graph_module(backward, graph)


class _Loop(torch.autograd.Function):
    """The forward loop; backward: the backward loop."""

    @staticmethod
    def forward(ctx: Any, halves: _Halves, options: Mapping[str, Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.halves, ctx.options = halves, options
        carry, stacked, constants = _cut(tensors, halves.carry, halves.tensors)
        results = record_loop(halves.forward, carry, stacked, constants, **options)
        outputs, written, saved = _cut(results, halves.carry, halves.written)
        ctx.mark_non_differentiable(*written)
        ctx.save_for_backward(*saved, *stacked, *constants)
        return (*outputs, *written)

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Tensor | None, ...]:
        halves = ctx.halves
        saved, stacked, constants = _cut(ctx.saved_tensors, halves.saved, halves.tensors)
        sums = [torch.zeros_like(constants[i]) for i in halves.constants]
        start = [*tangents[: halves.carry], *sums]
        results = record_loop(halves.backward, start, [*saved, *stacked], constants, reverse=True, **ctx.options)
        of_carry, of_constants, of_tensors = _cut(results, halves.carry, len(sums))
        return (
            *(None, None, *of_carry),
            *_spread(of_tensors, halves.trained, halves.tensors),
            *_spread(of_constants, halves.constants, len(constants)),
        )


def _cut(tensors: Sequence[Tensor], first: int, second: int) -> tuple[Sequence[Tensor], ...]:
    return tensors[:first], tensors[first : first + second], tensors[first + second :]


def _spread(gradients: Sequence[Tensor], places: Sequence[int], length: int) -> list[Tensor | None]:
    """The gradients at their places among `length`, None at the others."""
    found = dict(zip(places, gradients, strict=True))
    return [found.get(i) for i in range(length)]
