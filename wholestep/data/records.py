"""Files that hold many documents: JSON lines (plain, gzip, zstd) and Parquet.

A plain `.jsonl` is read in place through an index of its lines. What cannot be read at random in place (compressed
lines, Parquet) is unpacked once into the cache as one file of UTF-8 text and the offsets of its documents. Either way
the texts stay on disk, mapped into memory, whatever their size.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wholestep.data.cache import cached_directory, digest, fingerprint_files
from wholestep.data.documents import Documents
from wholestep.errors import DataError

log = logging.getLogger(__name__)

RECORD_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
TEXT_FIELD = "text"
BLOCK_BYTES = 16 * 2**20
# Below this, making an index or unpacking takes no time worth a message.
REPORT_BYTES = 64 * 2**20


def open_records(root: Path, path: Path) -> Documents:
    """The documents of one record file (see `RECORD_SUFFIXES`): each record's field or column `text`."""
    return JsonLines(root, path) if path.name.endswith(".jsonl") else UnpackedRecords(root, path)


class JsonLines(Documents):
    """The field `text` of every line of a plain `.jsonl`; empty lines are passed over."""

    def __init__(self, root: Path, path: Path) -> None:
        self._path = path
        self.fingerprint = fingerprint_files(root, [path])
        index = cached_directory("lines", _local_key(path, self.fingerprint), self._write_index)
        self._spans = np.load(index / "spans.npy", mmap_mode="r") if path.stat().st_size else np.empty((0, 2), np.int64)
        self._bytes = _map_bytes(path)

    def _write_index(self, directory: Path) -> None:
        _report("indexing", self._path)
        np.save(directory / "spans.npy", _line_spans(self._path))

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> str:
        start, end = self._spans[index]
        line = self._bytes[start:end].tobytes()
        try:
            return _text_of_line(line)
        except DataError as error:
            # Empty lines are not in the index, so that the line's number has to be counted.
            number = 1 + int(np.count_nonzero(self._bytes[:start] == ord("\n")))
            raise DataError(f"{self._path}:{number}: {error}") from error.__cause__


class UnpackedRecords(Documents):
    """The texts of a compressed `.jsonl` or a `.parquet`, unpacked once into the cache."""

    def __init__(self, root: Path, path: Path) -> None:
        self._path = path
        self.fingerprint = fingerprint_files(root, [path])
        store = cached_directory("texts", _local_key(path, self.fingerprint), self._unpack)
        self._offsets = np.load(store / "offsets.npy", mmap_mode="r")
        self._bytes = _map_bytes(store / "texts")

    def _unpack(self, directory: Path) -> None:
        _report("unpacking", self._path)
        texts = _parquet_texts(self._path) if self._path.suffix == ".parquet" else _compressed_texts(self._path)
        offsets = array("q", [0])
        with (directory / "texts").open("wb") as file:
            for text in texts:
                offsets.append(offsets[-1] + file.write(text.encode()))
        np.save(directory / "offsets.npy", np.frombuffer(offsets, np.int64))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> str:
        start, end = self._offsets[index], self._offsets[index + 1]
        return self._bytes[start:end].tobytes().decode()


def _local_key(path: Path, fingerprint: str) -> str:
    """The fingerprint samples large files; on one machine the modification time also tells an edited file."""
    return digest(fingerprint, str(path.stat().st_mtime_ns))


def _map_bytes(path: Path) -> np.ndarray:
    """The file as uint8, mapped and not read (an empty file cannot be mapped)."""
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)


def _line_spans(path: Path) -> np.ndarray:
    """int64 `[lines, 2]`: where each line that is not empty starts and ends, in bytes."""
    newlines, offset = [], 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            newlines.append(offset + np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")))
            offset += len(block)
    ends = np.concatenate([*newlines, [offset]]).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    data = _map_bytes(path)
    lengths = ends - starts
    lengths[[line for line in np.flatnonzero(lengths == 1) if data[starts[line]] == ord("\r")]] = 0
    return np.stack([starts, ends], axis=1)[lengths > 0]


def _text_of_line(line: bytes) -> str:
    """The record's text. The `DataError` it raises does not say where: the caller knows."""
    try:
        record = json.loads(line)
    except ValueError as error:  # also a line that is not UTF-8
        raise DataError(f"not a JSON object ({error}); mend or remove the line") from error
    if not isinstance(record, dict):
        raise DataError(f"a JSON object is wanted, this is a {type(record).__name__}; mend or remove the line")
    if TEXT_FIELD not in record:
        raise DataError(f"no field {TEXT_FIELD!r}, only {sorted(record)}; rename the field that holds the text")
    text = record[TEXT_FIELD]
    if not isinstance(text, str):
        raise DataError(f"the field {TEXT_FIELD!r} is a {type(text).__name__}, not a string; mend or remove the line")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError("the text has half a surrogate pair, which is no character; mend the line") from error
    return text


def _compressed_texts(path: Path) -> Iterator[str]:
    number = 1  # of the line at hand
    try:
        with pa.input_stream(str(path), compression="gzip" if path.suffix == ".gz" else "zstd") as stream:
            rest = b""
            while block := stream.read(BLOCK_BYTES):
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _text_of_line(line)
                    number += 1
            if rest.strip():
                yield _text_of_line(rest)
    except DataError as error:
        raise DataError(f"{path}:{number}: {error}") from error.__cause__
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be decompressed ({error}); fetch or write the file again") from error


def _parquet_texts(path: Path) -> Iterator[str]:
    row = 0  # of the record at hand, from 1
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if TEXT_FIELD not in columns:
                raise DataError(f"{path}: no column {TEXT_FIELD!r}, only {columns}; rename the one that holds the text")
            for batch in file.iter_batches(batch_size=1024, columns=[TEXT_FIELD]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if not isinstance(text, str):
                        raise DataError(f"{path}: row {row}: {TEXT_FIELD!r} is {text!r}, not a string; drop such rows")
                    yield text
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error}); fetch or write the file again") from error


def _report(doing: str, path: Path) -> None:
    size = path.stat().st_size
    if size > REPORT_BYTES:
        log.info("%s %s (%.1f GB), once", doing, path, size / 1e9)
