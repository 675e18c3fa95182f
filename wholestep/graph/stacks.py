"""Stacks of layers: finding those that are alike, so that one body can stand for all of them.

A stack is a run of layers in a `ModuleList` or `ModuleDict` that repeats with a period: every layer (period 1), or say
three sliding-window layers and a global one (period 4).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

# What may differ between layers that compute the same: a number that only says where a layer stands. That a layer's
# forward does not read it is seen to when it is traced (`graph/layers.py`).
POSITION_ATTRIBUTES = frozenset({"layer_idx", "layer_id", "layer_index"})


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
    for path, container in containers(module):
        layers = list(container.children())
        keys = tuple(name for name, _ in container.named_children())
        odd = _not_alike(layers)
        if odd is not None:
            differences.append(Difference(f"{path}.{keys[odd[0]]}", odd[1]))
            continue
        period = _period(layers)
        if period is not None:
            stacks.append(Stack(path, 0, keys, period))
            continue
        start = 0
        for i in range(1, len(layers) + 1):
            what = difference(layers[i - 1], layers[i]) if i < len(layers) else ""
            if what is None:
                continue
            if what:
                differences.append(Difference(f"{path}.{keys[i]}", what))
            if i - start > 1:
                stacks.append(Stack(path, start, keys[start:i], 1))
            start = i
    return stacks, differences


def difference(one: nn.Module, other: nn.Module) -> str | None:
    """The first thing that makes `other` compute something else than `one`, given the same parameters and inputs; None
    if there is nothing. Compared are the trees of submodules, their classes and plain attributes, and the shapes and
    dtypes of parameters and buffers."""
    mine, others = dict(one.named_modules()), dict(other.named_modules())
    if mine.keys() != others.keys():
        odd = sorted(mine.keys() ^ others.keys())[0]
        return f"submodule {odd!r} is in one of them only"
    for path, module in mine.items():
        what = _module_difference(module, others[path])
        if what is not None:
            return f"{path}.{what}" if path else what
    return None


def containers(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost `ModuleList`s and `ModuleDict`s of more than one module, with their paths."""
    for name, child in module.named_children():
        child_path = f"{path}.{name}" if path else name
        if isinstance(child, nn.ModuleList | nn.ModuleDict) and len(child) > 1:
            yield child_path, child
        else:
            yield from containers(child, child_path)


def _not_alike(layers: list[nn.Module]) -> tuple[int, str] | None:
    """The first layer that no loop can run, and why."""
    seen: set[nn.Parameter] = set()
    for i, layer in enumerate(layers):
        parameters = set(layer.parameters())
        if not seen.isdisjoint(parameters):
            return i, "it shares a parameter with a layer before"
        seen |= parameters
    return None


def _period(layers: list[nn.Module]) -> int | None:
    for period in range(1, len(layers) // 2 + 1):
        if len(layers) % period == 0 and all(
            difference(layers[i - period], layers[i]) is None for i in range(period, len(layers))
        ):
            return period
    return None


def _module_difference(one: nn.Module, other: nn.Module) -> str | None:
    if type(one).__qualname__ != type(other).__qualname__:
        return f"class is {type(one).__qualname__} in one and {type(other).__qualname__} in the other"
    for kind in ("_parameters", "_buffers"):
        mine, others = getattr(one, kind), getattr(other, kind)
        if mine.keys() != others.keys():
            return f"{sorted(mine.keys() ^ others.keys())[0]} is in one of them only"
        for name, tensor in mine.items():
            if _layout(tensor) != _layout(others[name]):
                return f"{name} is {_layout(tensor)} in one and {_layout(others[name])} in the other"
    if one.training != other.training:
        return f"training is {one.training} in one and {other.training} in the other"
    for kind in ("_forward_hooks", "_forward_pre_hooks"):
        if list(getattr(one, kind).values()) != list(getattr(other, kind).values()):
            return "it has other hooks"
    mine, others = _plain(one), _plain(other)
    for name in sorted(mine.keys() | others.keys()):
        if mine.get(name) != others.get(name):
            return f"{name} is {mine.get(name)!r} in one and {others.get(name)!r} in the other"
    return None


def _layout(tensor: Tensor | None) -> object:
    return None if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.requires_grad)


def _plain(module: nn.Module) -> dict[str, Any]:
    """The attributes that decide what a module computes beside its tensors. Private ones of `nn.Module` are the same
    for all; a value that does not say what it is equal to (a function, an object) is compared by identity or `==`."""
    ignored = nn.Module().__dict__.keys() | POSITION_ATTRIBUTES
    plain = {name: value for name, value in module.__dict__.items() if name not in ignored}
    return {
        name: dataclasses.astuple(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
        for name, value in plain.items()
    }
