"""What was tried while tuning, as lines of JSON: a run that was stopped goes on from them."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import wholestep
from wholestep.config.override import to_dict
from wholestep.data.cache import digest
from wholestep.plan.job import Job


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A candidate that was compiled.

    Attributes:
        key: of what was compiled (`key_of`).
        overrides: what differs from the recipe.
        needed: bytes a device, of `available`; at least, where `error` says that it could not be placed at all. None of
            a program that the compiler failed at.
        low, expected, high: seconds a step; None of what was not compiled to the end.
        tokens_per_second_per_chip: in the expected time.
        error: what went wrong; empty if nothing.
        timed_out: whether that is the time it took, which another run may have.
    """

    key: str = ""
    overrides: tuple[str, ...] = ()
    needed: int | None = None
    available: int | None = None
    low: float | None = None
    expected: float | None = None
    high: float | None = None
    tokens_per_second_per_chip: float | None = None
    error: str = ""
    timed_out: bool = False

    @property
    def fits(self) -> bool:
        return self.expected is not None and not self.too_large

    @property
    def too_large(self) -> bool:
        """Whether memory is what it fails by."""
        return self.needed is not None and self.available is not None and self.needed > self.available

    @property
    def speed(self) -> float:
        """Tokens a second and chip, if it fits; 0 otherwise."""
        return (self.tokens_per_second_per_chip or 0.0) if self.fits else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "fits": self.fits}


class Trials:
    """Trials by key, and the file that they are added to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_key: dict[str, Trial] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        if text and not text.endswith("\n"):  # stopped while it wrote
            self._append("\n")
        for line in text.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                fields = json.loads(line)
                del fields["fits"]
                trial = Trial(**{**fields, "overrides": tuple(fields["overrides"])})
                self._by_key[trial.key] = trial

    def get(self, key: str) -> Trial | None:
        return self._by_key.get(key)

    def add(self, trial: Trial) -> None:
        """It is on disk when this returns."""
        self._by_key[trial.key] = trial
        self._append(json.dumps(trial.to_dict()) + "\n")

    def _append(self, text: str) -> None:
        with self._path.open("a") as file:
            file.write(text)


def key_of(job: Job) -> str:
    """The same for equal recipes on equal topologies with the same compiler, whatever was set to come there."""
    versions = f"{wholestep.__version__} {version('libtpu')}"
    return digest(json.dumps(to_dict(job.build())), job.topology, str(job.slices), versions)
