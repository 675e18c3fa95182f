"""Documents that are at hand: counted, and read by index in any order."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wholestep.data.cache import digest, fingerprint_files
from wholestep.errors import DataError


class Documents(abc.ABC):
    """A random-access sequence of texts. Reading is safe from several threads at once."""

    fingerprint: str
    """A key of the contents: the same on every machine that has the same documents."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, index: int) -> str:
        """The document's text. Raises `DataError` when it cannot be read."""


class TextFiles(Documents):
    """UTF-8 text files, each one document, in the order given."""

    def __init__(self, root: Path, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self.fingerprint = fingerprint_files(root, self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> str:
        path = self._paths[index]
        try:
            return path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: not UTF-8 text at byte {error.start}; convert the file to UTF-8 or take it out of the source"
            ) from error
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); it was there when the run started") from error


class JoinedDocuments(Documents):
    """The documents of several parts, one part after the other."""

    def __init__(self, parts: Sequence[Documents]) -> None:
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in parts])
        self.fingerprint = digest(*(part.fingerprint for part in parts))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> str:
        part = int(np.searchsorted(self._ends, index, side="right"))
        start = int(self._ends[part - 1]) if part else 0
        return self._parts[part][index - start]


class TrainDocuments(Documents):
    """All documents but each `validation_every`-th (the last of every full group of that many)."""

    def __init__(self, documents: Documents, validation_every: int) -> None:
        self._documents = documents
        self._every = validation_every
        self.fingerprint = documents.fingerprint

    def __len__(self) -> int:
        return len(self._documents) - len(self._documents) // self._every

    def __getitem__(self, index: int) -> str:
        group, place = divmod(index, self._every - 1)
        return self._documents[group * self._every + place]


class HeldOutDocuments(Documents):
    """Each `validation_every`-th document: what `TrainDocuments` leaves out."""

    def __init__(self, documents: Documents, validation_every: int) -> None:
        self._documents = documents
        self._every = validation_every
        self.fingerprint = documents.fingerprint

    def __len__(self) -> int:
        return len(self._documents) // self._every

    def __getitem__(self, index: int) -> str:
        return self._documents[index * self._every + self._every - 1]
