"""What a run is, in a form that can be kept as JSON and built again: a recipe's name and what was changed in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wholestep.config.override import apply, replace, to_dict
from wholestep.errors import CheckpointError
from wholestep.kernels import turned_on
from wholestep.pipeline import Recipe
from wholestep.recipes.registry import Family, find
from wholestep.train.run_directory import write_json


@dataclass(frozen=True, kw_only=True)
class Description:
    """A recipe, to be built.

    Attributes:
        recipe: its registered name.
        overrides: `path=value` texts, applied in order.
        huggingface: where the run started from a Hugging Face model, that model's `config.json`; the recipe's model
            is then the one it describes, with the recipe's kernels.
    """

    recipe: str
    overrides: tuple[str, ...] = ()
    huggingface: Mapping[str, Any] | None = None

    @property
    def family(self) -> Family:
        """How the model's checkpoints look in Hugging Face's layout."""
        return find(self.recipe).family

    def build(self) -> Recipe:
        """The tree.

        Raises:
            ConfigError: an unknown recipe, path or value.
        """
        tree = find(self.recipe).function()
        if self.huggingface is not None:
            kernels = turned_on(tree)
            tree = apply(replace(tree, "model", self.family.from_hf_config(self.huggingface)), kernels)
        return apply(tree, self.overrides)

    def write(self, file: Path) -> None:
        """Keep this, with the tree that it makes for people to read."""
        write_json(file, {**asdict(self), "tree": to_dict(self.build())})

    @classmethod
    def read(cls, file: Path) -> Description:
        """Raises:
        CheckpointError: there is no run in this folder, or its description is damaged.
        """
        try:
            saved = json.loads(file.read_text())
            return cls(
                recipe=str(saved["recipe"]),
                overrides=tuple(str(override) for override in saved["overrides"]),
                huggingface=saved["huggingface"],
            )
        except FileNotFoundError:
            raise CheckpointError(f"{file.parent} holds no run: there is no {file.name} in it") from None
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file} cannot be read: {error!r}") from error
