"""The table of recipes: name -> a function that returns a config tree."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import wholestep.recipes
from wholestep.errors import ConfigError, nearest
from wholestep.models.decoder import Decoder
from wholestep.pipeline import Recipe


class Family(Protocol):
    """A module of `wholestep.models`: how its checkpoints look in Hugging Face's layout."""

    def hf_names(self, name: str, config: Decoder.Config) -> tuple[str, ...]:
        """The tensors there among which the rows of a model's parameter are divided, in order and equally; usually one.
        Raises ConfigError for a name that the family does not have."""

    def hf_left_out(self, name: str) -> bool:
        """Whether the tensor called so there is of a part of the model that is not here."""

    def hf_config(self, config: Decoder.Config) -> dict[str, Any]:
        """The `config.json` of a model."""

    def from_hf_config(self, config: Mapping[str, Any]) -> Decoder.Config:
        """The model of a `config.json`."""


@dataclass(frozen=True)
class Entry:
    """A registered recipe.

    Attributes:
        name: its function's.
        summary: one line about it, the docstring's first.
        family: its model's.
        function: returns its config tree.
        topology: that it is made for, of one slice (`tpu7x:4x4x4`); None if for any devices.
        slices: how many of these.
    """

    name: str
    summary: str
    family: Family
    function: Callable[[], Recipe]
    topology: str | None = None
    slices: int = 1


_ENTRIES: dict[str, Entry] = {}


def recipe(
    family: Family, topology: str | None = None, slices: int = 1
) -> Callable[[Callable[[], Recipe]], Callable[[], Recipe]]:
    """Register the decorated function under its own name; where it is made for a topology, with that."""

    def register(function: Callable[[], Recipe]) -> Callable[[], Recipe]:
        name = function.__name__
        assert name not in _ENTRIES, f"two recipes are called {name}"
        assert function.__doc__, f"recipe {name} needs a docstring"
        summary = function.__doc__.strip().splitlines()[0]
        _ENTRIES[name] = Entry(name, summary, family, function, topology, slices)
        return function

    return register


@cache
def entries() -> dict[str, Entry]:
    """Every recipe, by name, from every file of this folder and of those of the chips in it."""
    for module in pkgutil.walk_packages(wholestep.recipes.__path__, "wholestep.recipes."):
        importlib.import_module(module.name)
    return dict(sorted(_ENTRIES.items()))


def find(name: str) -> Entry:
    """The recipe called `name`.

    Raises:
        ConfigError: there is none; the nearest names are in the text.
    """
    known = entries()
    if name not in known:
        raise ConfigError(f"no recipe {name!r}{nearest(name, known)} (`wholestep recipes` lists them)")
    return known[name]
