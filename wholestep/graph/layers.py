"""Layers that are traced apart from the module that calls them: what loops over layers and calls of layers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from wholestep.errors import GraphError
from wholestep.graph.partition import Joint
from wholestep.graph.passes.identities import drop_identities
from wholestep.graph.stacks import POSITION_ATTRIBUTES
from wholestep.graph.trace import gradients, trace_body

Run = Callable[[Sequence[Tensor], Sequence[Any]], list[Tensor]]
"""The code of one layer or several: tensor inputs, weights -> tensor outputs, then what it writes into buffers."""


class Replacement(Protocol):
    """What runs instead of some of a module's layers.

    Attributes:
        paths: of these layers in the module.
    """

    @property
    def paths(self) -> Sequence[str]: ...

    def call(self, index: int, *args: Any, **kwargs: Any) -> Any:
        """What the layer at this index of `paths` does instead of its own forward."""

    def check_complete(self) -> None:
        """Called when the module's forward has ended."""


@contextmanager
def layers_replaced(module: nn.Module, replacements: Sequence[Replacement]) -> Iterator[None]:
    """While this is open, these layers of `module` run as their replacements say."""
    replaced: list[nn.Module] = []
    try:
        for replacement in replacements:
            for index, path in enumerate(replacement.paths):
                layer = module.get_submodule(path)
                layer.__dict__["forward"] = partial(replacement.call, index)
                replaced.append(layer)
        yield
        for replacement in replacements:
            replacement.check_complete()
    finally:
        for layer in replaced:
            del layer.__dict__["forward"]


@contextmanager
def own_forward(layer: nn.Module) -> Iterator[nn.Module]:
    """The layer as it is when nothing replaces it."""
    instead = layer.__dict__.pop("forward")
    try:
        yield layer
    finally:
        layer.__dict__["forward"] = instead


def empty_like(value: Any) -> Any:
    """A fake tensor like a tensor, outside of what is being traced; anything else as it is."""
    with disable_proxy_modes_tracing():
        return torch.empty_like(value) if isinstance(value, Tensor) else value


class PositionReadError(GraphError):
    """A layer that is traced for others too asks where it stands."""


@contextmanager
def _position_unread(layer: nn.Module) -> Iterator[None]:
    """While this is open, reading an attribute that says where the layer stands is an error."""

    def refuse(name: str) -> property:
        def read(module: nn.Module) -> None:
            raise PositionReadError(f"what it computes may depend on its {name}")

        return property(read)

    classes: dict[nn.Module, type] = {}
    try:
        for module in layer.modules():
            names = POSITION_ATTRIBUTES & module.__dict__.keys()
            if names:
                cls = classes[module] = type(module)
                module.__class__ = type(cls.__name__, (cls,), {name: refuse(name) for name in names})
        yield
    finally:
        for module, cls in classes.items():
            module.__class__ = cls


def call_layer(
    layer: nn.Module, tensors: dict[str, Any], args: Any, kwargs: Any, for_others: bool
) -> tuple[Any, dict[str, Tensor]]:
    """A layer's own results, with these parameters and buffers in place of its own, and what it wrote into buffers.

    Raises:
        PositionReadError: the layer stands for others too (`for_others`) and asks where it stands.
    """
    before = dict(tensors)
    versions = {name: tensor._version for name, tensor in tensors.items()}
    with own_forward(layer), _position_unread(layer) if for_others else nullcontext():
        results = functional_call(layer, tensors, args, kwargs)  # puts what is replaced into `tensors`
    written = {
        name: tensors[name]
        for name in before
        if tensors[name] is not before[name] or tensors[name]._version != versions[name]
    }
    return results, written


def outputs_like(
    run: Run, inputs: Sequence[Tensor], shards: Sequence[Tensor], as_weight: Sequence[Callable[[Tensor], Any]]
) -> list[Tensor]:
    """Fake tensors like `run`'s outputs; nothing is traced."""
    with disable_proxy_modes_tracing(), torch.no_grad():
        weights = [make(torch.empty_like(shard)) for make, shard in zip(as_weight, shards, strict=True)]
        return run([torch.empty_like(x) for x in inputs], weights)


def joint_graph(
    run: Run,
    inputs: Sequence[Tensor],
    shards: Sequence[Tensor],
    as_weight: Sequence[Callable[[Tensor], Any]],
    carried: Sequence[int],
    tangents: Sequence[Tensor],
    axes: Mapping[str, int],
) -> Joint:
    """The forward and backward pass of `run` as one graph.

    Args:
        run: the code.
        inputs: tensors like its inputs; gradients are for those that require them.
        shards: tensors like one device's shards of its parameters; likewise.
        as_weight: for each shard, the weight that `run` is given.
        carried: which inputs are the layer's own.
        tangents: tensors like the outputs that can have a gradient: the floating ones, except what is written into
            buffers.
        axes: mesh axis name -> size.
    """
    differentiable = tuple(i for i, tensor in enumerate((*inputs, *shards)) if tensor.requires_grad)
    outputs = 0

    def joint(*tensors: Tensor) -> list[Tensor]:
        nonlocal outputs
        given: list[Any] = list(tensors[: len(inputs)])
        # Gradients are taken of the weights, not of the shards they are made from: that is where what is `Partial` over
        # replicas stays so. The step sums it up once; the backward of making a weight would do it here too.
        given += [make(shard) for make, shard in zip(as_weight, tensors[len(inputs) :], strict=False)]
        for i in differentiable:
            given[i] = given[i].detach().requires_grad_(True)
        with torch.enable_grad():
            results = run(given[: len(inputs)], given[len(inputs) :])
        outputs = len(results)
        floating = (result for result in results if result.is_floating_point())
        pairs = zip(tensors[len(inputs) + len(shards) :], floating, strict=False)
        roots = [(result, tangent) for tangent, result in pairs if result.requires_grad]
        wanted = [given[i] for i in differentiable]
        grads = gradients([root for root, _ in roots], wanted, [tangent for _, tangent in roots])
        grads = [torch.zeros_like(x) if grad is None else grad for x, grad in zip(wanted, grads, strict=True)]
        local = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]
        return [*(result.detach() for result in results), *local]

    module = trace_body(joint, [empty_like(tensor) for tensor in (*inputs, *shards, *tangents)])
    drop_identities(module, axes)
    return Joint(module, len(inputs), len(shards), outputs, tuple(carried), differentiable)
