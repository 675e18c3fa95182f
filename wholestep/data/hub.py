"""Hugging Face datasets, streamed: never downloaded whole, and never run as code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np

from wholestep.data.cache import digest
from wholestep.data.records import TEXT_FIELD
from wholestep.errors import DataError


class HubStream:
    """The training split of a dataset on the Hugging Face Hub, its field `text`, read from start to end.

    `fingerprint` is a key of the dataset's name and of the commit that the Hub has it at now: reading stays at it.
    """

    def __init__(self, spec: str) -> None:
        import datasets

        name, _, config = spec.partition(":")
        try:
            # What `load_dataset(..., streaming=True)` does, keeping the builder, which knows the commit.
            builder = datasets.load_dataset_builder(name, config or None)
            self._dataset = builder.as_streaming_dataset(split="train")
        except Exception as error:  # the hub's client raises its own, requests', httpx's and fsspec's errors
            raise DataError(
                f"data source {spec!r}: no such local file or folder, and the Hugging Face Hub gives no dataset of "
                f"that name ({_first_line(error)}); mend the path or name, or add the config as 'name:config'"
            ) from error
        self._spec = spec
        self.fingerprint = digest("hub", spec, str(builder.hash))

    def part(self, process_index: int, process_count: int, order: int = 0) -> Any:
        """This process's share, a fresh `datasets.IterableDataset`.

        Order 0 is the dataset's own; any other number shuffles its files (not their contents), for all processes alike.
        """
        from datasets.distributed import split_dataset_by_node

        part = split_dataset_by_node(self._dataset, rank=process_index, world_size=process_count)
        part.set_epoch(order)  # nothing else than the seed of the files' order
        return part

    def text_of(self, example: dict[str, Any]) -> str:
        """The example's text, or a `DataError` that lists what the dataset has instead."""
        text = example.get(TEXT_FIELD)
        if not isinstance(text, str):
            raise DataError(
                f"data source {self._spec!r}: field {TEXT_FIELD!r} is {type(text).__name__}, not a string, among "
                f"fields {sorted(example)}; choose a dataset whose documents are in {TEXT_FIELD!r}"
            )
        return text

    def held_out(self, process_index: int, process_count: int, validation_every: int) -> Iterator[str]:
        """One pass over the documents of this process that training never sees."""
        for example in self.part(process_index, process_count):
            text = self.text_of(example)
            if is_held_out(text, validation_every):
                yield text

    def texts(self) -> Iterator[str]:
        """One pass over all documents."""
        return (self.text_of(example) for example in self.part(0, 1))


def is_held_out(text: str, validation_every: int) -> bool:
    """Whether a streamed document is kept from training: by its contents, so in any order and share of the stream."""
    key = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(key, "little") % validation_every == 0


class HubTrainDocuments(grain.IterDataset):
    """The training documents of one process, epoch after epoch without end."""

    def __init__(self, stream: HubStream, share: tuple[int, int], validation_every: int, seed: int) -> None:
        """`share` is (process_index, process_count); `seed` is of the order of the files, another every epoch."""
        super().__init__()
        self._arguments = (stream, share, validation_every, seed)

    def __iter__(self) -> HubTrainIterator:
        return HubTrainIterator(*self._arguments)


class HubTrainIterator(grain.DatasetIterator):
    """Iterator of `HubTrainDocuments`; its state is the epoch and the stream's own place in it."""

    def __init__(self, stream: HubStream, share: tuple[int, int], validation_every: int, seed: int) -> None:
        super().__init__()
        self._stream = stream
        self._share = share
        self._validation_every = validation_every
        self._seed = seed
        self._start(epoch=0, place=None, any_in_epoch=False)

    def _start(self, epoch: int, place: dict[str, Any] | None, any_in_epoch: bool) -> None:
        self._epoch = epoch
        # A fresh object every epoch: `datasets` keeps a loaded place and would start from it again.
        order = int(np.random.SeedSequence([self._seed, epoch]).generate_state(1)[0])
        self._part = self._stream.part(*self._share, order)
        if place is not None:
            self._part.load_state_dict(place)
        self._place = place
        self._any_in_epoch = any_in_epoch
        self._examples = iter(self._part)

    def __next__(self) -> str:
        while True:
            for example in self._examples:
                text = self._stream.text_of(example)
                if not is_held_out(text, self._validation_every):
                    self._any_in_epoch = True
                    self._place = self._part.state_dict()
                    return text
            if not self._any_in_epoch:
                index, count = self._share
                raise DataError(
                    f"a whole pass over the dataset gave process {index} of {count} no training document; use a "
                    "larger dataset, fewer processes or a larger validation_every"
                )
            self._start(self._epoch + 1, place=None, any_in_epoch=False)

    def get_state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "place": self._place, "any_in_epoch": self._any_in_epoch}

    def set_state(self, state: dict[str, Any]) -> None:
        self._start(state["epoch"], state["place"], state["any_in_epoch"])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
