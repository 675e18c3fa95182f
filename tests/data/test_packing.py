from __future__ import annotations

import json
from itertools import pairwise

import grain
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wholestep.data.packing import IGNORED_LABEL, Row, pack_rows, padding_row


def documents_of(lengths: list[int]) -> list[np.ndarray]:
    """Token arrays whose every token is distinct, so that any loss, repetition or exchange shows."""
    ends = np.cumsum([0, *lengths])
    return [np.arange(start, end, dtype=np.int32) for start, end in pairwise(ends)]


def rows_of(documents: list[np.ndarray], length: int) -> grain.IterDataset:
    return pack_rows(grain.MapDataset.source(documents).to_iter_dataset(), length)


def assert_same(one: Row, other: Row) -> None:
    assert one.keys() == other.keys()
    for field in one:
        np.testing.assert_array_equal(one[field], other[field])


def test_by_hand() -> None:
    rows = list(rows_of([np.array([1, 2, 3]), np.array([], int), np.array([9]), np.array([4, 5, 6, 7])], 4))
    assert [row["tokens"].tolist() for row in rows] == [[1, 2, 4, 5], [6, 0, 0, 0]]
    assert [row["labels"].tolist() for row in rows] == [[2, 3, 5, 6], [7, -100, -100, -100]]
    assert [row["positions"].tolist() for row in rows] == [[0, 1, 0, 1], [0, 0, 0, 0]]
    assert [row["segment_ids"].tolist() for row in rows] == [[1, 1, 2, 2], [1, 0, 0, 0]]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=25), st.integers(1, 17))
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost_repeated_or_out_of_order(lengths: list[int], length: int) -> None:
    documents = documents_of(lengths)
    rows = list(rows_of(documents, length))
    expected = [(int(a), int(b)) for tokens in documents for a, b in pairwise(tokens)]
    found: list[tuple[int, int]] = []
    document_of = {int(token): number for number, tokens in enumerate(documents) for token in tokens}
    for number, row in enumerate(rows):
        assert list(row) == ["tokens", "labels", "positions", "segment_ids"]
        for array in row.values():
            assert array.shape == (length,) and array.dtype == np.int32
        real = row["segment_ids"] > 0
        assert real.all() or number == len(rows) - 1
        assert real.any() and not np.any(np.diff(real.astype(int)) > 0)  # padding only at the end
        assert np.all(row["labels"][~real] == IGNORED_LABEL)
        # A segment is one run of one document: ids count 1, 2, ... and positions 0, 1, ... within each.
        owners = [document_of[int(token)] for token in row["tokens"][real]]
        segments = row["segment_ids"][real]
        starts = np.concatenate([[True], np.diff(owners) != 0])
        np.testing.assert_array_equal(segments, np.cumsum(starts))
        first = np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))
        np.testing.assert_array_equal(row["positions"][real], np.arange(len(starts)) - first)
        found += list(zip(row["tokens"][real].tolist(), row["labels"][real].tolist(), strict=True))
    assert found == expected


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(2, 9))
@settings(max_examples=15, deadline=None)
def test_the_state_goes_through_json_and_is_exact_at_every_row(lengths: list[int], length: int) -> None:
    dataset = rows_of(documents_of(lengths), length)
    reference = iter(dataset)
    rows, states = [], [json.dumps(reference.get_state())]
    for row in reference:
        rows.append(row)
        states.append(json.dumps(reference.get_state()))
    for place in range(len(rows) + 1):
        resumed = iter(dataset)
        resumed.set_state(json.loads(states[place]))
        assert json.dumps(resumed.get_state()) == states[place]
        rest = list(resumed)
        assert len(rest) == len(rows) - place
        for one, other in zip(rest, rows[place:], strict=True):
            assert_same(one, other)


def test_padding_row_has_the_fields_of_a_packed_row() -> None:
    packed = next(iter(rows_of([np.array([1, 2])], 3)))
    padding = padding_row(3)
    assert list(padding) == list(packed)
    assert all(padding[field].dtype == packed[field].dtype for field in packed)
    assert padding["labels"].tolist() == [-100] * 3 and padding["segment_ids"].tolist() == [0] * 3
