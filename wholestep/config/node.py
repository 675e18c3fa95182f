"""The config tree: frozen dataclasses that each build one thing.

A recipe is a tree of nodes. It is rewritten (see `wholestep.config.override`) before anything is built, so what a
tree says is what runs: replacing the node at `model.layers.*.attention.inner` is how another attention is turned on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Dtype = Literal["float32", "bfloat16"]
"""As configs name dtypes."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """Base of every config. Subclasses are frozen keyword-only dataclasses whose fields are plain values or nodes.

    A node never repeats what its parent knows (a layer's norm does not store the model width): the parent passes it
    to `build`, so that one override stays consistent everywhere.

    A subclass with a name, `class Config(CoreAttention, name="splash")`, can be put by that name in place of another
    node wherever a field is declared to hold a `CoreAttention`: `--set model.layers.*.attention.inner=splash`.
    """

    node_name: ClassVar[str | None] = None

    def __init_subclass__(cls, *, name: str | None = None) -> None:
        super().__init_subclass__()
        cls.node_name = name

    @classmethod
    def choices(cls) -> dict[str, type[Node]]:
        """The named classes among this one and those derived from it, as far as they have been imported, by name."""
        found = {cls.node_name: cls} if cls.node_name else {}
        for derived in cls.__subclasses__():
            found |= derived.choices()
        return dict(sorted(found.items()))

    def build(self, *args: Any, **context: Any) -> Any:
        """Make the thing that this node describes; `context` is what the parent knows (say `dim`).

        Subclasses name their context as keyword-only arguments; the open signature is what lets type checkers accept
        that.
        """
        raise TypeError(f"{type(self).__qualname__} describes plain values and builds nothing")
