"""What can become of an intermediate between the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from torch import fx


class Fate(Enum):
    """Kept on the device, kept in host memory, or computed again."""

    SAVE = "save"
    OFFLOAD = "offload"
    RECOMPUTE = "recompute"


Policy = Callable[[fx.Node], Fate]
"""Asked only about what enters a layer, and about nodes that depend on it and do more than rearrange."""
