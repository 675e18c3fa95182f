"""A stack of layers as one loop forward and one loop backward.

While a module's forward is traced, the layers of a stack do not run. Each call only checks that it is what a loop body
can stand for: that it takes what the layer before returned, and otherwise what the first layer took. The last call puts
the loop into the graph. So this works for whatever code calls the layers, as long as it calls them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.utils import reenter_make_fx
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from wholestep.errors import GraphError
from wholestep.graph.partition import Joint, Partition, Policy, partition
from wholestep.graph.passes.identities import drop_identities
from wholestep.graph.scan import record_loop
from wholestep.graph.stacks import Stack
from wholestep.graph.trace import gradients, label


@dataclass(frozen=True)
class StackedParameter:
    """One parameter of every trip's layer at one position of the period.

    Attributes:
        position: of the layer in the period.
        name: in its layer.
        shards: one device's shards of all trips, `[trips, ...]`.
        as_weight: what a layer reads, from one trip's shard.
    """

    position: int
    name: str
    shards: Tensor
    as_weight: Callable[[Tensor], Tensor]


@contextmanager
def layers_looped(module: nn.Module, runs: Sequence[LoopedStack]) -> Iterator[None]:
    """While this is open, `module`'s layers of these stacks are loops."""
    replaced: list[nn.Module] = []
    try:
        for run in runs:
            for index, path in enumerate(run.stack.paths):
                layer = module.get_submodule(path)
                layer.__dict__["forward"] = partial(run.call, index)
                replaced.append(layer)
        yield
        for run in runs:
            run.check_complete()
    finally:
        for layer in replaced:
            del layer.__dict__["forward"]


@dataclass
class LoopedStack:
    """A stack in one trace of its module's forward.

    Attributes:
        stack: which layers.
        layers: those of the first period, whose code the body is.
        parameters: of all layers.
        policy: what the backward loop finds kept.
        axes: mesh axis name -> size.
    """

    stack: Stack
    layers: Sequence[nn.Module]
    parameters: Sequence[StackedParameter]
    policy: Policy
    axes: Mapping[str, int]
    _calls: int = 0
    _first: list[Any] = field(default_factory=list)
    _spec: TreeSpec | None = None
    _result_spec: TreeSpec | None = None
    _previous: list[Tensor] = field(default_factory=list)
    _links: dict[int, int] = field(default_factory=dict)

    def call(self, index: int, *args: Any, **kwargs: Any) -> Any:
        """What the stack's layer of this index does instead of its own forward."""
        if index != self._calls:
            raise GraphError(
                f"{self.stack.paths[index]} is called where {self.stack.paths[self._calls]} is expected; a loop runs "
                "each layer once, in order"
            )
        arguments, spec = tree_flatten((args, kwargs))
        if self._calls == 0:
            self._first, self._spec, self._links = arguments, spec, {}
        else:
            self._check(arguments, spec)
        self._calls += 1
        if self._calls < len(self.stack.keys):
            return self._stand_in(args, kwargs)
        self._calls = 0  # the module may run again
        return self._loop()

    def check_complete(self) -> None:
        """Raises:
        GraphError: the forward pass ended in the middle of the stack.
        """
        if self._calls:
            raise GraphError(f"{self.stack.paths[self._calls]} and those after it are not called; it cannot be looped")

    def _stand_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Tensors like the layer's results, to recognize when the next layer is given them."""
        if self._result_spec is None:
            with disable_proxy_modes_tracing(), torch.no_grad():
                weights = {p.name: p.as_weight(torch.empty_like(p.shards[0])) for p in self._of_position(0)}
                with _own_forward(self.layers[0]) as layer:
                    results = functional_call(
                        layer, weights, tree_map(_empty_like, args), tree_map(_empty_like, kwargs)
                    )
            flat, self._result_spec = tree_flatten(results)
            if not all(isinstance(result, Tensor) for result in flat):
                raise GraphError(f"{self.stack.paths[0]} returns something that is not a tensor; it cannot be looped")
            self._previous = flat
        with disable_proxy_modes_tracing():
            self._previous = [torch.empty_like(result) for result in self._previous]
        return tree_unflatten(self._previous, self._result_spec)

    def _check(self, arguments: list[Any], spec: TreeSpec) -> None:
        """See that this call's arguments are the last one's results and otherwise the first one's arguments."""
        path = self.stack.paths[self._calls]
        if spec != self._spec:
            raise GraphError(f"{path} is called with other arguments than {self.stack.paths[0]}; it cannot be looped")
        links: dict[int, int] = {}
        for position, (argument, first) in enumerate(zip(arguments, self._first, strict=True)):
            for k, result in enumerate(self._previous):
                if argument is result:
                    links[position] = k
            same = argument is first or (not isinstance(argument, Tensor) and argument == first)
            if position not in links and not same:
                raise GraphError(
                    f"argument {position} of {path} is neither what the layer before returned nor what "
                    f"{self.stack.paths[0]} was given; it cannot be looped"
                )
        if set(links.values()) != set(range(len(self._previous))):
            raise GraphError(f"{path} is not given all that the layer before returned; it cannot be looped")
        if self._links and links != self._links:
            raise GraphError(f"{path} takes what the layer before returned in other places; it cannot be looped")
        self._links = links

    def _of_position(self, position: int) -> list[StackedParameter]:
        return [parameter for parameter in self.parameters if parameter.position == position]

    def _loop(self) -> Any:
        """The loop itself; returns what the last layer would."""
        carried = {k: self._first[position] for position, k in self._links.items()}
        carry = [carried[k] for k in range(len(carried))]
        constants = [
            argument
            for position, argument in enumerate(self._first)
            if position not in self._links and isinstance(argument, Tensor)
        ]
        shards = [parameter.shards for parameter in self.parameters]
        if torch.is_grad_enabled():
            halves = partition(self._joint(carry, constants), self.policy)
            results = list(_Loop.apply(halves, len(carry), len(shards), *carry, *shards, *constants))
        else:
            with disable_proxy_modes_tracing():
                fakes = [
                    *map(_empty_like, carry),
                    *(torch.empty_like(s[0]) for s in shards),
                    *map(_empty_like, constants),
                ]
            body = reenter_make_fx(partial(self._forward, len(carry)))(*fakes)
            results = record_loop(body, carry, shards, constants)
        return tree_unflatten(results, self._result_spec)

    def _forward(self, carry: int, *tensors: Tensor) -> list[Tensor]:
        """Carry, one trip's shards, constants -> new carry."""
        inputs = list(tensors)
        self._shards_to_weights(inputs, carry)
        return self._body(carry, inputs)

    def _shards_to_weights(self, inputs: list[Tensor], carry: int) -> None:
        for i, parameter in enumerate(self.parameters, start=carry):
            inputs[i] = parameter.as_weight(inputs[i].detach())

    def _body(self, carry: int, inputs: list[Tensor]) -> list[Tensor]:
        """One period of layers: carry, one trip's weights, constants -> new carry."""
        state, given_weights = inputs[:carry], inputs[carry : carry + len(self.parameters)]
        constants = iter(inputs[carry + len(self.parameters) :])
        rest = [
            next(constants) if isinstance(argument, Tensor) and i not in self._links else argument
            for i, argument in enumerate(self._first)
        ]
        for position, layer in enumerate(self.layers):
            weights = {
                parameter.name: weight
                for parameter, weight in zip(self.parameters, given_weights, strict=True)
                if parameter.position == position
            }
            given = [state[self._links[i]] if i in self._links else argument for i, argument in enumerate(rest)]
            args, kwargs = tree_unflatten(given, self._spec)
            with _own_forward(layer):
                state = tree_flatten(functional_call(layer, weights, args, kwargs))[0]
        return state

    def _joint(self, carry: list[Tensor], constants: list[Tensor]) -> Joint:
        """One period's forward and backward pass as one graph."""
        differentiable = tuple(i for i, constant in enumerate(constants) if constant.requires_grad)
        shards = [parameter.shards for parameter in self.parameters]

        def run(*tensors: Tensor) -> list[Tensor]:
            inputs, tangents = list(tensors[: -len(carry)]), tensors[-len(carry) :]
            constants_at = len(carry) + len(shards)
            wanted = [*range(constants_at), *(constants_at + i for i in differentiable)]
            # Gradients are taken of the weights, not of the shards they are made from: that is where what is `Partial`
            # over replicas stays so. The step sums it up once; the backward of making a weight would do it here too.
            self._shards_to_weights(inputs, len(carry))
            for i in wanted:
                inputs[i] = inputs[i].detach().requires_grad_(True)
            with torch.enable_grad():
                outputs = self._body(len(carry), inputs)
            grads = gradients(outputs, [inputs[i] for i in wanted], tangents)
            grads = [torch.zeros_like(inputs[i]) if g is None else g for i, g in zip(wanted, grads, strict=True)]
            local = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]
            return [*(output.detach() for output in outputs), *local]

        with disable_proxy_modes_tracing():
            fakes = [*map(_empty_like, carry), *(torch.empty_like(s[0]) for s in shards), *map(_empty_like, constants)]
            fakes += map(_empty_like, carry)
        module = reenter_make_fx(run)(*fakes)
        label(module)
        drop_identities(module, self.axes)
        return Joint(module, len(carry), len(shards), len(constants), differentiable)


class _Loop(torch.autograd.Function):
    """The forward loop; backward: the backward loop."""

    @staticmethod
    def forward(ctx: Any, halves: Partition, carry: int, parameters: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        start, shards, constants = tensors[:carry], tensors[carry : carry + parameters], tensors[carry + parameters :]
        results = record_loop(halves.forward, start, shards, constants)
        ctx.halves, ctx.counts = halves, (carry, parameters, len(constants))
        ctx.save_for_backward(*results[carry:], *shards, *constants)
        return tuple(results[:carry])

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Tensor | None, ...]:
        carry, parameters, constants = ctx.counts
        halves, tensors = ctx.halves, ctx.saved_tensors
        saved, shards = tensors[: halves.saved], tensors[halves.saved : halves.saved + parameters]
        constant = tensors[halves.saved + parameters :]
        sums = [torch.zeros_like(constant[i]) for i in halves.differentiable]
        results = record_loop(halves.backward, [*tangents, *sums], [*saved, *shards], constant, reverse=True)
        middle = carry + len(sums)
        constant_grads: list[Tensor | None] = [None] * constants
        for i, grad in zip(halves.differentiable, results[carry:middle], strict=True):
            constant_grads[i] = grad
        return (None, None, None, *results[:carry], *results[middle:], *constant_grads)


@contextmanager
def _own_forward(layer: nn.Module) -> Iterator[nn.Module]:
    """The layer as it is when it is no part of a loop."""
    instead = layer.__dict__.pop("forward")
    try:
        yield layer
    finally:
        layer.__dict__["forward"] = instead


def _empty_like(value: Any) -> Any:
    return torch.empty_like(value) if isinstance(value, Tensor) else value
