"""What is derived once and kept on disk: trained tokenizers, indexes of records, unpacked texts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from wholestep.errors import DataError

SMALL_FILE_BYTES = 8 * 2**20
SAMPLE_BYTES = 64 * 2**10
SAMPLES = 16
# Longer than anything takes to be derived.
_ABANDONED_SECONDS = 24 * 3600


def cache_root() -> Path:
    """`$WHOLESTEP_CACHE`, or `~/.cache/wholestep` when it is not set."""
    configured = os.environ.get("WHOLESTEP_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "wholestep"


def cached_directory(kind: str, key: str, fill: Callable[[Path], None]) -> Path:
    """The cache's folder `kind/key`. On first use `fill` writes its files into an empty folder beside it, then renamed.

    Nothing partial is ever seen under the final name, also when several processes fill the same key at once: the
    first rename wins and the others throw their own copy away. Raises `DataError` when the cache cannot be written.
    """
    final = cache_root() / kind / key
    if final.is_dir():
        return final
    _sweep(final)
    partial = final.with_name(f"{key}.{uuid.uuid4().hex}")
    try:
        partial.mkdir(parents=True)
        fill(partial)
        partial.rename(final)
    except OSError as error:
        if not final.is_dir():
            raise DataError(
                f"cache folder {final.parent}: cannot be written ({error.strerror}); make room there, or set "
                "WHOLESTEP_CACHE to another folder"
            ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def _sweep(final: Path) -> None:
    """Remove what processes that were killed left of this folder."""
    for partial in final.parent.glob(f"{final.name}.*"):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if time.time() - partial.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(partial, ignore_errors=True)


def digest(*parts: str) -> str:
    """A short hexadecimal key of strings; where one ends and the next begins counts."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode()
        hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.hexdigest()


def fingerprint_files(root: Path, paths: Sequence[Path]) -> str:
    """A key of the files' contents and of their names relative to `root`.

    Modification times stay out of it, so that a copy on another machine has the same key. Small files are read whole;
    of a file over 8 MiB the size and sixteen evenly spaced blocks count, so that terabytes need not be read to start.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for path in paths:
        size = path.stat().st_size
        hasher.update(f"{path.relative_to(root).as_posix()}\0{size}\0".encode())
        with path.open("rb") as file:
            if size <= SMALL_FILE_BYTES:
                hasher.update(file.read())
                continue
            for sample in range(SAMPLES):
                file.seek((size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
                hasher.update(file.read(SAMPLE_BYTES))
    return hasher.hexdigest()
