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


class DataDependentError(GraphError):
    """What is traced depends on the values of a tensor, which there are only when the program runs."""


class LoweringError(WholestepError):
    """A captured graph cannot be lowered to XLA."""


class DeviceMemoryError(WholestepError):
    """A program needs more memory than a device has.

    Attributes:
        needed: bytes that the compiler counted before it gave up; may be less than the program takes in the end.
        available: bytes of a device that programs can have.
    """

    def __init__(self, needed: int, available: int) -> None:
        self.needed, self.available = needed, available
        super().__init__(
            f"the program needs at least {needed / 2**30:.2f} GiB on a device, and there are {available / 2**30:.2f} "
            "GiB: use more devices, a smaller batch or a shorter sequence, or keep less for the backward pass "
            "(layers.keep)"
        )


class HostMemoryError(WholestepError):
    """A program needs more of the host's memory for a device than the compiler gives it."""

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(
            f"the program needs at least {needed / 2**30:.2f} GiB of the host's memory for a device, and the compiler "
            f"gives it {available / 2**30:.2f} GiB: offload less (layers.keep, layers.rules, optimizer_state)"
        )


class NonFiniteError(WholestepError):
    """The loss or a gradient became NaN or infinite."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """`; did you mean 'a', 'b'?` for the known names most like `name`, or an empty string when none is."""
    matches = difflib.get_close_matches(name, list(known), n=count, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(match) for match in matches)}?" if matches else ""
