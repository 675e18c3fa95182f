"""Text for next-token prediction: from a source of documents to batches of packed rows that resume exactly."""

from __future__ import annotations

import json
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import grain
import numpy as np
from grain.experimental import ThreadPrefetchIterDataset, WindowShuffleIterDataset

from wholestep.config.node import Node
from wholestep.data.documents import Documents, HeldOutDocuments, TrainDocuments
from wholestep.data.hub import HubStream, HubTrainDocuments
from wholestep.data.packing import Row, pack_rows, padding_row
from wholestep.data.sources import Source, open_source
from wholestep.data.tokenizer import Tokenizer, load_tokenizer
from wholestep.errors import ConfigError, DataError

Batch = dict[str, np.ndarray]

# Documents tokenized ahead. Two threads tokenize over 1M tokens/s on two cores.
READ_OPTIONS = grain.ReadOptions(num_threads=2, prefetch_buffer_size=16)
# A stream is shuffled in windows of this many documents, on top of the order of its files.
STREAM_WINDOW = 1024
# Rows are shuffled in windows of about this many tokens, and of at least so many batches: a long document fills many
# rows one after the other, and a batch of one document's rows is a poor sample of the text.
SHUFFLED_TOKENS = 2**18
SHUFFLED_BATCHES = 8


@dataclass(frozen=True, kw_only=True)
class Text(Node):
    """Documents to train and validate on, and how they become tokens."""

    source: str = "stdlib"
    """What `wholestep.data.open_source` takes: `stdlib`, local files, or a Hugging Face dataset."""
    tokenizer: str | None = None
    """A folder in Hugging Face's format or a Hub name; None trains a byte-level BPE on the source, once."""
    tokenizer_vocab_size: int = 8192
    """Of the trained tokenizer."""
    seed: int = 0
    """Of the order of the documents."""
    validation_every: int = 50
    """One document in so many is held out of training, by a rule that no seed, epoch or process count changes."""

    def build(
        self, *, sequence_length: int, batch_size: int, process_index: int = 0, process_count: int = 1
    ) -> TextData:
        """Open the source and the tokenizer (trained now if need be).

        `batch_size` counts the rows of all processes together. Raises `ConfigError` for values that cannot be, and
        `DataError` when the source or the tokenizer cannot be read or nothing is left to train on or to hold out.
        """
        _require(sequence_length >= 1, f"sequence_length is {sequence_length}; it must be at least 1")
        _require(self.seed >= 0, f"data.seed is {self.seed}; it must not be negative")
        _require(self.validation_every >= 2, f"data.validation_every is {self.validation_every}; the least is 2")
        _require(
            0 <= process_index < process_count,
            f"process_index is {process_index}; it must be from 0 to process_count - 1, {process_count - 1}",
        )
        _require(
            batch_size >= 1 and batch_size % process_count == 0,
            f"batch_size is {batch_size}, the rows of all processes; it must be a multiple of their number, "
            f"{process_count}",
        )
        source = open_source(self.source)
        if isinstance(source, Documents) and len(source) < self.validation_every:
            raise DataError(
                f"data source {self.source!r}: {len(source)} documents are too few to hold out one in "
                f"{self.validation_every}; add documents or lower data.validation_every"
            )
        tokenizer = load_tokenizer(self.tokenizer, source, self.tokenizer_vocab_size)
        identity = {
            "source": source.fingerprint,
            "tokenizer": tokenizer.fingerprint,
            "seed": self.seed,
            "validation_every": self.validation_every,
            "sequence_length": sequence_length,
            "batch_size": batch_size,
            "process_index": process_index,
            "process_count": process_count,
        }
        return TextData(source, tokenizer, identity)


class TextData:
    """The data of one process. `train` is endless; `validation` gives a new finite pass each time.

    A batch is a dict of int32 `[batch_size / process_count, sequence_length]`: `tokens`, `labels`, `positions`,
    `segment_ids` (see `wholestep.data.packing.pack_rows`).
    """

    def __init__(self, source: Source, tokenizer: Tokenizer, identity: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self._source = source
        self._every: int = identity["validation_every"]
        self._length: int = identity["sequence_length"]
        self._process: int = identity["process_index"]
        self._processes: int = identity["process_count"]
        self._rows: int = identity["batch_size"] // self._processes
        self._held_out_batches: dict[int, int] = {}
        rows = pack_rows(self._train_tokens(identity["seed"]), self._length)
        window = max(SHUFFLED_TOKENS // self._length, SHUFFLED_BATCHES * self._rows)
        rows = WindowShuffleIterDataset(rows, window_size=window, seed=_mixed(identity["seed"]))
        batches = rows.batch(self._rows, drop_remainder=True, batch_fn=_stack)
        # A window ahead: the next one is filled while this one is used up, so that training never waits for it.
        batches = ThreadPrefetchIterDataset(batches, prefetch_buffer_size=window // self._rows)
        self.train = TrainStream(iter(batches), identity)

    def _train_tokens(self, seed: int) -> grain.IterDataset:
        shuffle_seed = _mixed(seed)
        if isinstance(self._source, HubStream):
            documents = HubTrainDocuments(self._source, (self._process, self._processes), self._every, seed)
            shuffled = WindowShuffleIterDataset(documents, window_size=STREAM_WINDOW, seed=shuffle_seed)
            return shuffled.map(self.tokenizer.encode)
        epochs = grain.MapDataset.source(TrainDocuments(self._source, self._every)).shuffle(seed=shuffle_seed).repeat()
        # Processes deal the one endless order out between them, so that in every epoch each document goes to one.
        share = epochs[self._process :: self._processes]
        return share.map(self.tokenizer.encode).to_iter_dataset(READ_OPTIONS)

    def validation(self, max_batches: int) -> Iterator[Batch]:
        """One pass over this process's held-out documents, at most `max_batches` batches, always the same ones.

        The last rows and batches are padded (labels -100, segment 0), so that every batch has the same shape and every
        process gives the same number of batches, as a collective program needs. On a streamed source with several
        processes that number is always `max_batches`, since none of them knows what the others have.
        """
        given = 0
        with closing(self._held_out(self._process)) as batches:
            for batch in islice(batches, max_batches):
                yield batch
                given += 1
        for _ in range(given, self._agreed_batches(given, max_batches)):
            yield self._padded([])

    def _held_out(self, process: int) -> Generator[Batch, None, None]:
        rows = iter(pack_rows(self._held_out_tokens(process), self._length))
        batch: list[Row] = []
        try:
            for row in rows:
                batch.append(row)
                if len(batch) == self._rows:
                    yield _stack(batch)
                    batch = []
            if batch:
                yield self._padded(batch)
        finally:
            rows.close()

    def _padded(self, rows: list[Row]) -> Batch:
        return _stack(rows + [padding_row(self._length)] * (self._rows - len(rows)))

    def _held_out_tokens(self, process: int) -> grain.IterDataset:
        if isinstance(self._source, HubStream):
            texts = self._source.held_out(process, self._processes, self._every)
            return _OnePass(texts).map(self.tokenizer.encode)
        held_out = grain.MapDataset.source(HeldOutDocuments(self._source, self._every))
        return held_out[process :: self._processes].map(self.tokenizer.encode).to_iter_dataset(READ_OPTIONS)

    def _agreed_batches(self, own: int, max_batches: int) -> int:
        """How many batches the process with the most held-out text has, at most `max_batches`: every process finds
        the same number by itself. Only asked when the own documents are at an end, so that as a rule it is cheap."""
        if isinstance(self._source, HubStream):
            if self._processes > 1:
                return max_batches
            if own == 0:
                raise DataError(
                    f"no document of the streamed dataset is held out at validation_every={self._every}; lower it"
                )
            return own
        most = own
        for process in range(self._processes):
            if most >= max_batches:
                break
            if process == self._process:
                continue
            if process not in self._held_out_batches:
                self._held_out_batches[process] = sum(1 for _ in self._held_out(process))
            most = max(most, self._held_out_batches[process])
        return min(most, max_batches)


class TrainStream(Iterator[Batch]):
    """Training batches without end, made ready on a background thread.

    `get_state` is the place after the last batch *handed out*, whatever has been made ready since.
    """

    def __init__(self, batches: grain.DatasetIterator, identity: dict[str, Any]) -> None:
        # Owned through a list, so that closing lets go of it: grain's iterator fails in its `__del__` when it is still
        # there while the interpreter shuts down. The finalizer runs before that, or when this object is dropped.
        self._open = [batches]
        self._finalizer = weakref.finalize(self, _close_all, self._open)
        self._identity = identity

    @property
    def _batches(self) -> grain.DatasetIterator:
        if not self._open:
            raise DataError("the training data is closed; build it again to read on")
        return self._open[0]

    def __next__(self) -> Batch:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """A JSON-able place in the stream of *this process* (each process keeps its own)."""
        # Through JSON, so that it shares nothing with the live iterator and is the same before and after being saved.
        return {**self._identity, "place": json.loads(json.dumps(self._batches.get_state()))}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly after the batch at which `state` was taken. Raises `DataError` for a state of other data."""
        wrong = [
            f"{name} is {mine!r} here and {state.get(name)!r} in the state"
            for name, mine in self._identity.items()
            if state.get(name) != mine
        ]
        if wrong or "place" not in state:
            raise DataError(
                f"the saved place belongs to other data: {'; '.join(wrong) or 'it has no place'}; resume with the "
                "same data settings, or start the data anew"
            )
        try:
            self._batches.set_state(state["place"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(
                f"the saved place cannot be read ({error!r}); it was saved by another version: start the data anew"
            ) from error

    def close(self) -> None:
        """Stop the background threads; the stream gives nothing afterwards."""
        self._finalizer()


def _close_all(iterators: list[grain.DatasetIterator]) -> None:
    while iterators:
        iterators.pop().close()


class _OnePass(grain.IterDataset):
    """A plain iterator as the start of a grain pipeline that is read once and never saved."""

    def __init__(self, texts: Iterator[str]) -> None:
        super().__init__()
        self._texts = texts

    def __iter__(self) -> grain.DatasetIterator:
        return _OnePassIterator(self._texts)


class _OnePassIterator(grain.DatasetIterator):
    def __init__(self, texts: Iterator[str]) -> None:
        super().__init__()
        self._texts = texts

    def __next__(self) -> str:
        return next(self._texts)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("a single pass is never resumed")


def _mixed(seed: int) -> int:
    """A seed for grain. Unmixed, seed 1's first epoch would be seed 0's second: grain adds the epoch to the seed, and
    the number of the window, and fails when that comes to 2**32."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0]) // 2


def _stack(rows: Sequence[Row]) -> Batch:
    return {field: np.stack([row[field] for row in rows]) for field in rows[0]}


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)
