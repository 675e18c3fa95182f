"""Documents packed into rows of one fixed length, with no token lost or repeated.

Each document `[BOS ... EOS]` becomes its (token, next token) pairs *before* packing, so that cutting a document at
the end of a row loses no prediction. grain's concat-then-split then joins the pairs and cuts them every L; the two
travel as one array `[pairs, 2]`, so that they cannot drift apart.
"""

from __future__ import annotations

from typing import Any

import grain
import numpy as np
from grain.experimental import ConcatThenSplitIterDataset

Row = dict[str, np.ndarray]

IGNORED_LABEL = -100
"""The label of a place that counts for nothing (what `torch.nn.functional.cross_entropy` ignores by default)."""


def next_token_pairs(tokens: np.ndarray) -> dict[str, np.ndarray]:
    """int32 `[n]` -> `{"pairs": int32 [max(n - 1, 0), 2]}`: every token with the one that follows it."""
    return {"pairs": np.stack([tokens[:-1], tokens[1:]], axis=1).astype(np.int32)}


def pack_rows(documents: grain.IterDataset, sequence_length: int) -> grain.IterDataset:
    """Pack the int32 `[n]` token arrays of `documents` into rows of `sequence_length` = L.

    Every row is a dict of int32 `[L]`: `tokens`; `labels` (the token after each, -100 on padding); `positions` (from 0
    at each segment's start); `segment_ids` (1, 2, ... in the row, 0 on padding). A document longer than what is left of
    a row goes on in the next one as a new segment, which cannot see the earlier one. Only the last row of a finite
    stream has padding. The iterator's state is JSON-able and exact.
    """
    # A document of fewer than two tokens predicts nothing; grain would still give it a segment number.
    pairs = documents.map(next_token_pairs).filter(lambda element: len(element["pairs"]) > 0)
    return _Rows(ConcatThenSplitIterDataset(pairs, length_struct={"pairs": sequence_length}))


def padding_row(sequence_length: int) -> Row:
    """A row that counts for nothing: int32 `[L]` fields, labels -100, segment 0."""
    row = {field: np.zeros(sequence_length, np.int32) for field in ("tokens", "labels", "positions", "segment_ids")}
    row["labels"][:] = IGNORED_LABEL
    return row


class _Rows(grain.IterDataset):
    def __iter__(self) -> _RowIterator:
        return _RowIterator(iter(self._parent))


class _RowIterator(grain.DatasetIterator):
    """Names grain's fields as ours, and lets its state pass through JSON."""

    def __next__(self) -> Row:
        packed = next(self._parent)
        segment_ids = packed["pairs_segment_ids"]
        return {
            "tokens": np.ascontiguousarray(packed["pairs"][:, 0]),
            "labels": np.where(segment_ids > 0, packed["pairs"][:, 1], np.int32(IGNORED_LABEL)),
            "positions": packed["pairs_positions"],
            "segment_ids": segment_ids,
        }

    def get_state(self) -> dict[str, Any]:
        return self._parent.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        # grain tells "no remainder" by comparing with the tuple (-1, -1); JSON has made a list of it, which would
        # compare unequal and drop a document without a word.
        slices = {feature: tuple(span) for feature, span in state["remainder_slices"].items()}
        self._parent.set_state({**state, "remainder_slices": slices})
