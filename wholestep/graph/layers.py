"""Layers that are traced apart from the module that calls them: what loops over layers and calls of layers share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._pytree import tree_leaves

from wholestep.errors import GraphError
from wholestep.graph.partition import Joint
from wholestep.graph.passes.identities import drop_identities
from wholestep.graph.stacks import POSITION_ATTRIBUTES, Instead
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
                layer.__dict__["forward"] = Instead(partial(replacement.call, index), layer.__dict__.get("forward"))
                replaced.append(layer)
        yield
        for replacement in replacements:
            replacement.check_complete()
    finally:
        for layer in replaced:
            _restore_forward(layer)


@contextmanager
def own_forward(layer: nn.Module) -> Iterator[None]:
    """While this is open, the layer's forward is its own."""
    instead = _restore_forward(layer)
    try:
        yield
    finally:
        layer.__dict__["forward"] = instead


def _restore_forward(layer: nn.Module) -> Instead:
    instead = layer.__dict__.pop("forward")
    if instead.own is not None:
        layer.__dict__["forward"] = instead.own
    return instead


def modes() -> tuple[object, ...]:
    """What decides, beside its arguments, how an operator is traced."""
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def empty_like(value: Any) -> Any:
    """A fake tensor like a tensor, outside of what is being traced; anything else as it is."""
    with disable_proxy_modes_tracing():
        return torch.empty_like(value) if isinstance(value, Tensor) else value


class UnsuitableError(GraphError):
    """A layer does something that tracing it apart from the module that calls it would lose."""


class PositionReadError(UnsuitableError):
    """A layer that is traced for others too asks where it stands."""


def call_layer(
    layer: nn.Module, tensors: dict[str, Any], args: Any, kwargs: Any, for_others: bool
) -> tuple[Any, dict[str, Tensor]]:
    """The results of a layer's own forward, without its hooks, with these parameters and buffers in place of its own;
    and what it wrote into buffers.

    Raises:
        PositionReadError: the layer stands for others too (`for_others`) and asks where it stands.
        UnsuitableError: it writes into an argument, or sets attributes.
    """
    before = dict(tensors)
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    versions = [tensor._version for tensor in (*before.values(), *given)]
    position_unread = _position_unread(layer) if for_others else nullcontext()
    with own_forward(layer), _without_hooks(layer), _attributes_unchanged(layer), position_unread:
        results = functional_call(layer, tensors, args, kwargs)  # puts what is replaced into `tensors`
    if any(tensor._version != version for tensor, version in zip(given, versions[len(before) :], strict=True)):
        raise UnsuitableError("it writes into a tensor that it is given")
    written = {
        name: tensors[name]
        for (name, tensor), version in zip(before.items(), versions, strict=False)
        if tensors[name] is not tensor or tensor._version != version
    }
    return results, written


@contextmanager
def _without_hooks(layer: nn.Module) -> Iterator[None]:
    """Hooks on the layer itself run where it is called."""
    hooks = {name: value for name, value in layer.__dict__.items() if name.endswith("_hooks") and "state" not in name}
    layer.__dict__.update({name: OrderedDict() for name in hooks})
    try:
        yield
    finally:
        layer.__dict__.update(hooks)


@contextmanager
def _attributes_unchanged(layer: nn.Module) -> Iterator[None]:
    """Attributes that a layer sets hold tensors of its own trace, so that nobody else could read them."""
    before = {module: dict(module.__dict__) for module in layer.modules()}
    yield
    changed = set()
    for module, attributes in before.items():
        now = module.__dict__
        changed |= {n for n in now.keys() | attributes.keys() if now.get(n) is not attributes.get(n, ...)}
        now.clear()
        now.update(attributes)
    if changed:
        raise UnsuitableError(f"it sets its {', '.join(sorted(changed))}")


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
    needed: int,
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
        needed: how many of the first inputs get a gradient even if no output depends on them, of zeros.
        axes: mesh axis name -> size.
    """
    differentiable = tuple(i for i, tensor in enumerate((*inputs, *shards)) if tensor.requires_grad)
    outputs = 0
    found: dict[int, Tensor] = {}

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
        grads[:needed] = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, grads[:needed], strict=False)]
        found.update({i: grad for i, grad in zip(differentiable, grads, strict=True) if grad is not None})
        local = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in found.values()]
        return [*(result.detach() for result in results), *local]

    module = trace_body(joint, [empty_like(tensor) for tensor in (*inputs, *shards, *tangents)])
    drop_identities(module, axes)
    return Joint(module, len(inputs), len(shards), outputs, tuple(carried), tuple(found))
