"""The package's own exceptions: what went wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WholestepError(Exception):
    """Base of every error a user can cause or mend. The command line prints its text and exits with 2."""


class ConfigError(WholestepError):
    """A recipe, a path, a key or a value of the configuration is wrong."""


class DataError(WholestepError):
    """A text, a dataset or a tokenizer cannot be read or does not fit the model."""


class CheckpointError(WholestepError):
    """A checkpoint is missing, incomplete or belongs to another model."""


class GraphError(WholestepError):
    """A module cannot be captured, or its captured graph cannot be transformed."""


class LoweringError(WholestepError):
    """A captured graph cannot be lowered to XLA."""


class NonFiniteError(WholestepError):
    """The loss or a gradient became NaN or infinite."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """`; did you mean 'a', 'b'?` for the known names most like `name`, or an empty string when none is."""
    matches = difflib.get_close_matches(name, list(known), n=count, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(match) for match in matches)}?" if matches else ""
