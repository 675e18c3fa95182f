"""The config tree: frozen dataclasses that each build one thing.

A recipe is a tree of nodes. It is rewritten (see `wholestep.config.override`) before anything is built, so what a
tree says is what runs: replacing the node at `model.layers.*.attention.inner` is how another attention is turned on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Node:
    """Base of every config. Subclasses are frozen keyword-only dataclasses whose fields are plain values or nodes.

    A node never repeats what its parent knows (a layer's norm does not store the model width): the parent passes it
    to `build`, so that one override stays consistent everywhere.
    """

    def build(self, *args: Any, **context: Any) -> Any:
        """Make the thing that this node describes; `context` is what the parent knows (say `dim`).

        Subclasses name their context as keyword-only arguments; the open signature is what lets type checkers accept
        that.
        """
        raise TypeError(f"{type(self).__qualname__} describes plain values and builds nothing")
