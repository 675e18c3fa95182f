"""Stacks of layers: finding those that are alike, so that one body can stand for all of them.

A stack is a run of layers in a `ModuleList` or `ModuleDict` that repeats with a period: every layer (period 1), or say
three sliding-window layers and a global one (period 4).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from wholestep.parallel.simple_fsdp import unsharded_class

# What may differ between layers that compute the same: a number that only says where a layer stands, or how wide its
# first values are. That a layer's forward does not read it is seen to when it is traced (`graph/layers.py`).
POSITION_ATTRIBUTES = frozenset({"layer_idx", "layer_id", "layer_index", "init_std"})


@dataclass(frozen=True)
class Stack:
    """Layers that one loop body can stand for.

    Attributes:
        container: path of the `ModuleList` or `ModuleDict`.
        start: place of the first of these layers in it.
        keys: the layers' keys, in order; their number is a multiple of the period.
        period: how many layers the body holds.
    """

    container: str
    start: int
    keys: tuple[str, ...]
    period: int

    @property
    def paths(self) -> tuple[str, ...]:
        """The layers' paths in the module."""
        return tuple(f"{self.container}.{key}" if self.container else key for key in self.keys)

    def name_of(self, position: int) -> str:
        """A name, like a slice, for the layers at one position of the period: `layers.0:32:1`."""
        return f"{self.container}.{self.start + position}:{self.start + len(self.keys)}:{self.period}"

    @property
    def trips(self) -> int:
        """How often the body runs."""
        return len(self.keys) // self.period


@dataclass(frozen=True)
class Difference:
    """Why two neighbours in a container are not one stack: which layer, and in what it differs from the one before."""

    layer: str
    what: str


def find_stacks(module: nn.Module) -> tuple[list[Stack], list[Difference]]:
    """The stacks of `module`, outermost containers only, and what keeps containers from being one stack each.

    A container whose layers repeat with some period is one stack; otherwise its uniform runs of at least two are.
    """
    stacks: list[Stack] = []
    differences: list[Difference] = []
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    tensors = Counter(tensor for _, tensor in named)
    for path, container in containers(module):
        layers = list(container.children())
        keys = tuple(name for name, _ in container.named_children())
        odd = _not_alike(layers, tensors)
        if odd is not None:
            differences.append(Difference(f"{path}.{keys[odd[0]]}", odd[1]))
            continue
        structures = [structure(layer) for layer in layers]
        period = _period(structures)
        if period is not None:
            stacks.append(Stack(path, 0, keys, period))
            continue
        start = 0
        for i in range(1, len(layers) + 1):
            what = difference(structures[i - 1], structures[i]) if i < len(layers) else ""
            if what is None:
                continue
            if what:
                differences.append(Difference(f"{path}.{keys[i]}", what))
            if i - start > 1:
                stacks.append(Stack(path, start, keys[start:i], 1))
            start = i
    return stacks, differences


Structure = dict[str, dict[str, Any]]
"""Path of each submodule -> what decides what it computes beside its inputs and the values of its tensors: its class,
mode and hooks, shapes and dtypes of its parameters and buffers, and its plain attributes."""


def structure(layer: nn.Module) -> Structure:
    """The layer as it is now."""
    return {path: _features(module) for path, module in layer.named_modules()}


def difference(one: Structure, other: Structure) -> str | None:
    """The first thing that makes a layer compute something else than another, given the same parameters and inputs;
    None if there is nothing."""
    if one.keys() != other.keys():
        return f"submodule {sorted(one.keys() ^ other.keys())[0]!r} is in one of them only"
    for path, mine in one.items():
        others = other[path]
        for name in sorted(mine.keys() | others.keys()):
            what = f"{path}.{name}" if path else name
            if name not in mine or name not in others:
                return f"{what} is in one of them only"
            if not _same(mine[name], others[name]):
                return f"{what} is {_shown(mine[name])} in one and {_shown(others[name])} in the other"
    return None


def containers(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost `ModuleList`s and `ModuleDict`s of more than one module, with their paths. One that holds another
    is no container of layers but a part of the model."""
    for name, child in module.named_children():
        child_path = f"{path}.{name}" if path else name
        if _is_container(child) and len(child) > 1 and not any(map(_is_container, child.children())):
            yield child_path, child
        else:
            yield from containers(child, child_path)


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.ModuleDict)


def _not_alike(layers: list[nn.Module], tensors: Counter[Tensor]) -> tuple[int, str] | None:
    """The first layer that no loop can run, and why; `tensors` counts the names of each in the whole module."""
    for i, layer in enumerate(layers):
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            if tensors[tensor] > 1:
                return i, f"it shares {name} with another module"
    return None


def _period(structures: Sequence[Structure]) -> int | None:
    for period in range(1, len(structures) // 2 + 1):
        if len(structures) % period == 0 and all(
            difference(structures[i - period], structures[i]) is None for i in range(period, len(structures))
        ):
            return period
    return None


def _features(module: nn.Module) -> dict[str, Any]:
    features: dict[str, Any] = {"class": unsharded_class(module), "training": module.training}
    for kind in ("_forward_hooks", "_forward_pre_hooks"):
        features[kind.strip("_")] = list(getattr(module, kind).values())
    features |= {name: _layout(tensor) for name, tensor in (*module._parameters.items(), *module._buffers.items())}
    for name, value in module.__dict__.items():
        if name not in _NOT_FEATURES:
            features[name] = value.own if isinstance(value, Instead) else _snapshot(value)
    if features.get("forward", ...) is None:  # replaced, and none of its own before
        del features["forward"]
    return features


_NOT_FEATURES = nn.Module().__dict__.keys() | POSITION_ATTRIBUTES


@dataclass(frozen=True)
class Instead:
    """What a layer's instance has as its forward while something replaces it.

    Attributes:
        call: what runs.
        own: what it had; None if the class's.
    """

    call: Callable[..., Any]
    own: Callable[..., Any] | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


def _snapshot(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, list | dict | set) else value


def _same(one: Any, other: Any) -> bool:
    """Whether two attributes are alike; those that do not say what they equal are compared by identity."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # arrays, say
        return False


def _shown(value: Any) -> str:
    return value.__qualname__ if isinstance(value, type) else repr(value)


def _layout(tensor: Tensor | None) -> object:
    return None if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
