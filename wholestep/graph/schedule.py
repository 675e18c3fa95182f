"""The learning rate over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from wholestep.config.node import Node


@dataclass(frozen=True, kw_only=True)
class Schedule(Node):
    """Linear warm-up from 0 to the peak, then a decay to `final_fraction` of it at the last step.

    Attributes:
        warmup_steps: steps until the peak is reached.
        decay: shape of what follows.
        final_fraction: the last step's rate over the peak's; not used by `constant`.
    """

    warmup_steps: int = 0
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    final_fraction: float = 0.1

    def factor(self, step: int, steps: int) -> float:
        """What the peak learning rate is multiplied by in step `step` (from 1) of `steps`."""
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        if self.decay == "constant":
            return 1.0
        progress = min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps))
        left = 0.5 * (1 + math.cos(math.pi * progress)) if self.decay == "cosine" else 1 - progress
        return self.final_fraction + (1 - self.final_fraction) * left
