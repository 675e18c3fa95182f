"""The folder of a run: what is in it and where.

recipe.json      what the run is
metrics.jsonl    one line a step, one a validation
tensorboard/     the same as event files
checkpoints/     the state, the last few times it was saved
tokenizer/       the tokenizer, as `transformers` loads it
summary.json     what the run came to
loss.png         the loss curve
profile/         a trace, where one was asked for
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunDirectory:
    """The paths of one run."""

    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def loss_curve(self) -> Path:
        return self.path / "loss.png"

    @property
    def profile(self) -> Path:
        return self.path / "profile"

    def has_checkpoint(self) -> bool:
        """Whether the run has ever saved its state."""
        return self.checkpoints.is_dir() and any(child.name.isdecimal() for child in self.checkpoints.iterdir())


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write whole or not at all; the folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    beside.write_text(json.dumps(value, indent=2) + "\n")
    beside.replace(file)
