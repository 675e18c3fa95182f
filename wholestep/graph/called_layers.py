"""Layers laid out one after the other, each as a call of a body that layers of the same structure share.

A body is traced once, whatever the depth. Where the layers are traced apart like this, what their backward pass finds
kept can be chosen, and they can become programs of their own.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from wholestep.graph.call import record_call
from wholestep.graph.layers import (
    PositionReadError,
    UnsuitableError,
    call_layer,
    empty_like,
    joint_graph,
    modes,
    outputs_like,
    own_forward,
)
from wholestep.graph.partition import Keep, partition
from wholestep.graph.random import Scope, scope_of
from wholestep.graph.signature import as_dtensor, mesh_axes
from wholestep.graph.stacks import Structure, difference, structure
from wholestep.graph.trace import trace_body
from wholestep.parallel.simple_fsdp import gradient_placements

_TENSOR = object()
_PLAIN = (Tensor, bool, int, float, str, torch.dtype, type(None))


@dataclass
class CalledLayers:
    """Layers of one container in one trace of their module's forward.

    Attributes:
        container: its path.
        paths: of the layers.
        places: of the layers in the container.
        layers: all of which may differ; each may be called in any order, often or not at all.
        keep: what their backward passes find kept.
        mesh: what their parameters are sharded over.
    """

    container: str
    paths: Sequence[str]
    places: Sequence[int]
    layers: Sequence[nn.Module]
    keep: Keep
    mesh: DeviceMesh
    _odd: dict[str, list[str]] = field(default_factory=dict)
    _bodies: dict[Hashable, list[_Body]] = field(default_factory=lambda: defaultdict(list))
    _calls: Counter[int] = field(default_factory=Counter)
    _seen: list[Tensor] = field(default_factory=list)

    def call(self, index: int, *args: Any, **kwargs: Any) -> Any:
        layer = self.layers[index]
        try:
            return self._call(index, args, kwargs)
        except UnsuitableError as error:
            self._odd.setdefault(str(error), []).append(self.paths[index])
        with own_forward(layer):
            return layer.forward(*args, **kwargs)

    def _call(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layer = self.layers[index]
        leaves, spec = tree_flatten((args, kwargs))
        odd = next((leaf for leaf in leaves if not isinstance(leaf, _PLAIN)), None)
        if odd is not None:  # something the layer may change: a cache, say
            raise UnsuitableError(f"it is given a {type(odd).__qualname__}")
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        parameters, buffers = dict(layer.named_parameters()), dict(layer.named_buffers())
        placements = gradient_placements(self.mesh)
        shards = [parameter.to_local(grad_placements=placements) for parameter in parameters.values()]
        inputs = [*given, *buffers.values()]
        differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, *shards))
        fresh = [x.requires_grad and not any(x is seen for seen in self._seen) for x in given]
        own = [i for i, is_fresh in enumerate(fresh) if is_fresh and differentiable]
        body = self._body(index, leaves, spec, parameters, tuple(buffers), inputs, shards, own, differentiable)
        self._seen += given
        again = f"#{self._calls[index]}" if self._calls[index] else ""
        scope = scope_of(f"{self.container}{again}", self.places[index])
        self._calls[index] += 1
        others = [x for i, x in enumerate(inputs) if i not in own]
        results = list(_Call.apply(body, scope, *(inputs[i] for i in own), *shards, *others))
        for name in reversed(body.code.written):
            owner, _, attribute = name.rpartition(".")
            setattr(layer.get_submodule(owner), attribute, results.pop())
        return tree_unflatten(body.code.with_statics(results), body.code.result_spec)

    def _body(
        self,
        index: int,
        leaves: Sequence[Any],
        spec: TreeSpec,
        parameters: Mapping[str, Tensor],
        buffers: tuple[str, ...],
        inputs: Sequence[Tensor],
        shards: Sequence[Tensor],
        own: Sequence[int],
        differentiable: bool,
    ) -> _Body:
        """One that computes what this layer does now, traced if there is none."""
        now = structure(self.layers[index])
        for path, features in now.items():
            for name, value in features.items():
                if isinstance(value, Tensor):
                    raise UnsuitableError(f"{path}.{name} is a tensor that is neither parameter nor buffer".lstrip("."))
        statics = tuple(None if isinstance(leaf, Tensor) else (type(leaf), leaf) for leaf in leaves)
        layouts = tuple(map(_layout, (*inputs, *shards)))
        alike = self._bodies[(spec, statics, tuple(own), modes(), layouts)]
        for body in alike:
            if body.only_for in (None, index) and difference(body.structure, now) is None:
                return body
        as_weight = [partial(as_dtensor, shape=p.shape, mesh=self.mesh) for p in parameters.values()]
        make = self._differentiable_body if differentiable else self._forward_body

        def body_of(for_others: bool) -> _Body:
            code = _Code(self.layers[index], leaves, spec, tuple(parameters), buffers, for_others)
            return make(code, now, inputs, shards, as_weight, own)

        try:
            body = body_of(for_others=True)
        except PositionReadError:
            body = dataclasses.replace(body_of(for_others=False), only_for=index)
        alike.append(body)
        return body

    @property
    def notes(self) -> list[str]:
        """Which layers could not be calls, and why."""
        notes = []
        for why, paths in self._odd.items():
            which = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
            notes.append(f"{which}: traced in place, so that layers.keep does not apply: {why}")
        return notes

    def check_complete(self) -> None:
        """Layers may be left out."""

    def _differentiable_body(
        self,
        code: _Code,
        layer: Structure,
        inputs: Sequence[Tensor],
        shards: Sequence[Tensor],
        as_weight: Sequence[Callable[[Tensor], DTensor]],
        own: Sequence[int],
    ) -> _Body:
        outputs = outputs_like(code.run, inputs, shards, as_weight)
        results = outputs[: len(outputs) - len(code.written)]
        floating = [result.is_floating_point() for result in results] + [False] * len(code.written)
        tangents = [result for result in results if result.is_floating_point()]
        joint = joint_graph(code.run, inputs, shards, as_weight, own, tangents, 0, mesh_axes(self.mesh))
        halves = partition(joint, self.keep, fenced=True)
        order = [*own, *range(len(inputs), len(inputs) + len(shards))]
        order += [i for i in range(len(inputs)) if i not in own]
        place = {i: k for k, i in enumerate(order)}
        return _Body(
            code=code,
            structure=layer,
            forward=halves.forward,
            backward=halves.backward,
            outputs=len(outputs),
            floating=tuple(floating),
            saved=halves.saved,
            own=len(own),
            differentiable=tuple(place[i] for i in joint.differentiable),
        )

    def _forward_body(
        self,
        code: _Code,
        layer: Structure,
        inputs: Sequence[Tensor],
        shards: Sequence[Tensor],
        as_weight: Sequence[Callable[[Tensor], DTensor]],
        own: Sequence[int],
    ) -> _Body:
        def forward(*tensors: Tensor) -> list[Tensor]:
            weights = [make(shard) for make, shard in zip(as_weight, tensors, strict=False)]
            return code.run(tensors[len(shards) :], weights)

        with torch.no_grad():
            body = trace_body(forward, [empty_like(x) for x in (*shards, *inputs)])
        outputs = len(body.graph.output_node().args[0])
        return _Body(code=code, structure=layer, forward=body, outputs=outputs, floating=(False,) * outputs)


def _layout(tensor: Tensor) -> Hashable:
    return tuple(tensor.shape), tensor.dtype, tensor.requires_grad


@dataclass
class _Code:
    """A layer's own forward as a function of tensors.

    Attributes:
        layer: whose.
        leaves: its flat arguments; tensors among them only say where inputs go.
        spec: how they are nested.
        parameters: names of the weights.
        buffers: names of the inputs that follow the arguments.
        for_others: whether it stands for other layers too.
        result_spec: how its results are nested, once it has run.
        statics: the flat results, with a mark where a tensor goes, likewise.
        written: names of the buffers whose new values follow the results, likewise.
    """

    layer: nn.Module
    leaves: Sequence[Any]
    spec: TreeSpec
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    for_others: bool
    result_spec: TreeSpec | None = None
    statics: tuple[Any, ...] = ()
    written: tuple[str, ...] = ()

    def run(self, inputs: Sequence[Tensor], weights: Sequence[Any]) -> list[Tensor]:
        given = iter(inputs)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.spec)
        tensors = dict(zip((*self.parameters, *self.buffers), (*weights, *given), strict=True))
        results, written = call_layer(self.layer, tensors, args, kwargs, self.for_others)
        flat, self.result_spec = tree_flatten(results)
        odd = next((result for result in flat if not isinstance(result, _PLAIN)), None)
        if odd is not None:
            raise UnsuitableError(f"it returns a {type(odd).__qualname__}")
        self.statics = tuple(_TENSOR if isinstance(result, Tensor) else result for result in flat)
        self.written = tuple(written)
        return [*(result for result in flat if isinstance(result, Tensor)), *written.values()]

    def with_statics(self, tensors: Sequence[Tensor]) -> list[Any]:
        """The flat results, from those that are tensors."""
        given = iter(tensors)
        return [next(given) if static is _TENSOR else static for static in self.statics]


@dataclass(frozen=True, kw_only=True)
class _Body:
    """A layer's two halves. Tensors come in the order: the layer's own inputs, shards, other inputs.

    Attributes:
        code: what they compute.
        structure: of the layer when they were traced.
        only_for: the index of the one layer that they stand for; None if they stand for all that are alike.
        forward: tensors -> outputs, then what is saved.
        backward: tangents of the floating outputs, saved, shards, other inputs -> gradients; None if there are none.
        outputs: how many.
        floating: which of them can have a gradient.
        saved: how many values pass from one half to the other.
        own: how many inputs are the layer's own.
        differentiable: which of the tensors the gradients are of.
    """

    code: _Code
    structure: Structure
    only_for: int | None = None
    forward: fx.GraphModule
    backward: fx.GraphModule | None = None
    outputs: int
    floating: tuple[bool, ...]
    saved: int = 0
    own: int = 0
    differentiable: tuple[int, ...] = ()


class _Call(torch.autograd.Function):
    """A call of the forward half; backward: one of the backward half."""

    @staticmethod
    def forward(ctx: Any, body: _Body, scope: Scope, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.body, ctx.scope, ctx.count = body, scope, len(tensors)
        results = record_call(body.forward, tensors, scope)
        outputs = results[: body.outputs]
        ctx.save_for_backward(*results[body.outputs :], *tensors[body.own :])
        ctx.mark_non_differentiable(*(x for x, floats in zip(outputs, body.floating, strict=True) if not floats))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Tensor | None, ...]:
        body = ctx.body
        needed = [tangent for tangent, floats in zip(tangents, body.floating, strict=True) if floats]
        grads = record_call(body.backward, [*needed, *ctx.saved_tensors], ctx.scope)
        found = dict(zip(body.differentiable, grads, strict=True))
        return (None, None, *(found.get(i) for i in range(ctx.count)))
