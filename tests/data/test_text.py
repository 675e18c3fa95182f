from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wholestep.data import Text, TextData, open_source
from wholestep.data import text as module
from wholestep.data.documents import Documents
from wholestep.data.hub import is_held_out
from wholestep.data.text import Batch
from wholestep.errors import ConfigError, DataError

FIELDS = ["tokens", "labels", "positions", "segment_ids"]
Pairs = tuple[tuple[int, int], ...]


@pytest.fixture
def corpus(write_corpus: Callable[..., Path]) -> Text:
    """23 documents; 19 to train on, 4 held out."""
    return Text(source=str(write_corpus(23)), tokenizer_vocab_size=280, validation_every=5)


@pytest.fixture
def build() -> Iterator[Callable[..., TextData]]:
    built: list[TextData] = []

    def make(text: Text, length: int = 16, rows: int = 4, **processes: int) -> TextData:
        built.append(text.build(sequence_length=length, batch_size=rows, **processes))
        return built[-1]

    yield make
    for data in built:
        data.train.close()


def take(data: TextData, count: int) -> list[Batch]:
    return [next(data.train) for _ in range(count)]


def assert_same(one: list[Batch], other: list[Batch]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert list(left) == list(right) == FIELDS
        for field in FIELDS:
            np.testing.assert_array_equal(left[field], right[field])


def pairs_of(batches: list[Batch]) -> list[tuple[int, int]]:
    return [
        (int(token), int(label))
        for batch in batches
        for token, label in zip(batch["tokens"].flat, batch["labels"].flat, strict=True)
        if label != -100
    ]


def documents_of(batches: list[Batch], bos: int | None) -> list[Pairs]:
    """The (token, label) pairs of the batches, cut into documents where one begins."""
    found: list[list[tuple[int, int]]] = []
    for pair in pairs_of(batches):
        if pair[0] == bos:
            found.append([])
        found[-1].append(pair)
    return [tuple(document) for document in found]


def encoded(data: TextData, texts: list[str]) -> Counter[Pairs]:
    ids = [data.tokenizer.encode(text).tolist() for text in texts]
    return Counter(tuple(pairwise(tokens)) for tokens in ids)


def texts_of(text: Text) -> list[str]:
    source = open_source(text.source)
    assert isinstance(source, Documents)
    return [source[index] for index in range(len(source))]


def held_out(texts: list[str]) -> list[str]:
    return texts[4::5]


def trained_on(texts: list[str]) -> list[str]:
    return [text for index, text in enumerate(texts) if index % 5 != 4]


def test_shapes_and_types(corpus: Text, build: Callable[..., TextData]) -> None:
    data = build(corpus)
    batches = take(data, 3) + list(data.validation(2))
    for batch in batches:
        assert list(batch) == FIELDS
        for array in batch.values():
            assert array.shape == (4, 16) and array.dtype == np.int32
    assert data.tokenizer.vocab_size == 280
    assert max(int(batch["tokens"].max()) for batch in batches) < 280


def test_every_epoch_has_every_document_once_in_another_order(corpus: Text, build: Callable[..., TextData]) -> None:
    data = build(corpus)
    expected = encoded(data, trained_on(texts_of(corpus)))
    assert len(expected) == 19
    epochs = 3
    length = sum(map(len, expected))
    batches = take(data, -(-epochs * length // (4 * 16)) + 1)
    assert all((batch["segment_ids"] > 0).all() for batch in batches)  # an endless stream has no padding
    documents = documents_of(batches, data.tokenizer.bos_id)[: 19 * epochs]
    orders = [documents[epoch * 19 : (epoch + 1) * 19] for epoch in range(epochs)]
    for order in orders:
        assert Counter(order) == expected
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_two_builds_are_the_same_and_another_seed_is_not(corpus: Text, build: Callable[..., TextData]) -> None:
    first = take(build(corpus), 12)
    assert_same(first, take(build(corpus), 12))
    other = Text(source=corpus.source, tokenizer_vocab_size=280, validation_every=5, seed=1)
    assert pairs_of(first) != pairs_of(take(build(other), 12))


@pytest.mark.parametrize("length", [3, 16, 200])
def test_resume_is_exact_once_twice_and_three_times(corpus: Text, build: Callable[..., TextData], length: int) -> None:
    count = 60 if length < 100 else 12  # several epochs
    data = build(corpus, length)
    states, reference = [json.dumps(data.train.get_state())], []
    for _ in range(count):
        reference += take(data, 1)
        states.append(json.dumps(data.train.get_state()))
    for place in (0, 1, 2, count // 3, count // 2, count - 2):
        resumed = build(corpus, length)
        resumed.train.set_state(json.loads(states[place]))
        assert json.dumps(resumed.train.get_state()) == states[place]
        assert_same(take(resumed, 2), reference[place : place + 2])
        assert json.dumps(resumed.train.get_state()) == states[place + 2]
    state = json.loads(states[1])
    step = count // 4
    for place in (1, 1 + step, 1 + 2 * step):  # each from the state that the one before saved
        resumed = build(corpus, length)
        resumed.train.set_state(state)
        assert_same(take(resumed, step), reference[place : place + step])
        state = json.loads(json.dumps(resumed.train.get_state()))
    data.train.set_state(json.loads(states[0]))  # also back, in a stream that has run
    assert_same(take(data, count), reference)


def test_the_state_is_of_the_batches_handed_out(corpus: Text, build: Callable[..., TextData]) -> None:
    data = build(corpus)
    take(data, 3)
    before = data.train.get_state()
    following = take(data, 1)
    data.train.set_state(before)
    assert_same(take(data, 1), following)
    copy = data.train.get_state()
    copy["place"]["parent_state"] = "spoiled"  # what a caller does to a state does not reach the stream
    assert data.train.get_state()["place"]["parent_state"] != "spoiled"


def test_a_state_of_other_data_is_refused(
    corpus: Text, build: Callable[..., TextData], write_corpus: Callable[..., Path]
) -> None:
    state = build(corpus).train.get_state()
    settings: dict[str, Any] = {"source": corpus.source, "tokenizer_vocab_size": 280, "validation_every": 5}
    others = [
        ("source", build(Text(**{**settings, "source": str(write_corpus(24, "other"))}))),
        ("tokenizer", build(Text(**{**settings, "tokenizer_vocab_size": 270}))),
        ("seed", build(Text(**settings, seed=7))),
        ("validation_every", build(Text(**{**settings, "validation_every": 6}))),
        ("sequence_length", build(corpus, 17)),
        ("batch_size", build(corpus, 16, 8)),
        ("process_count", build(corpus, process_count=2)),
    ]
    for name, other in others:
        with pytest.raises(DataError, match=rf"belongs to other data: .*{name} is .* here and .* in the state"):
            other.train.set_state(state)
    with pytest.raises(DataError, match="has no place"):
        build(corpus).train.set_state({key: value for key, value in state.items() if key != "place"})
    with pytest.raises(DataError, match="cannot be read"):
        build(corpus).train.set_state({**state, "place": {}})


def test_processes_share_out_every_epoch(corpus: Text, build: Callable[..., TextData]) -> None:
    found: Counter[Pairs] = Counter()
    for index in range(3):
        data = build(corpus, 16, 6, process_index=index, process_count=3)
        batches = take(data, 60)
        assert batches[0]["tokens"].shape == (2, 16)
        own = len(range(index, 19, 3))  # of the first epoch's 19
        found += Counter(documents_of(batches, data.tokenizer.bos_id)[:own])
    expected = encoded(data, trained_on(texts_of(corpus)))
    assert found == expected and set(found.values()) == {1}


def test_resume_of_one_process_of_several(corpus: Text, build: Callable[..., TextData]) -> None:
    processes = {"process_index": 1, "process_count": 2}
    data = build(corpus, **processes)
    take(data, 17)
    state = json.loads(json.dumps(data.train.get_state()))
    resumed = build(corpus, **processes)
    resumed.train.set_state(state)
    assert_same(take(resumed, 20), take(data, 20))


@pytest.mark.parametrize("processes", [1, 2, 3, 6])
def test_validation_covers_every_held_out_document_once(
    corpus: Text, build: Callable[..., TextData], processes: int
) -> None:
    found: Counter[Pairs] = Counter()
    counts = set()
    for index in range(processes):
        data = build(corpus, 16, 6, process_index=index, process_count=processes)
        batches = list(data.validation(1000))
        assert {array.shape for batch in batches for array in batch.values()} == {(6 // processes, 16)}
        assert_same(batches, list(data.validation(1000)))  # a fresh pass each time
        assert_same(batches[:1], list(data.validation(1)))
        counts.add(len(batches))
        counts_at_two = len(list(data.validation(2)))
        assert counts_at_two == min(2, len(batches))
        found += Counter(documents_of(batches, data.tokenizer.bos_id))
        for batch in batches:
            assert np.all((batch["segment_ids"] == 0) == (batch["labels"] == -100))
    assert len(counts) == 1  # the program is collective
    expected = encoded(data, held_out(texts_of(corpus)))
    assert found == expected and len(expected) == 4
    assert not set(found) & set(encoded(data, trained_on(texts_of(corpus))))


def test_validation_leaves_training_alone(corpus: Text, build: Callable[..., TextData]) -> None:
    reference = take(build(corpus), 6)
    data = build(corpus)
    assert_same(take(data, 3), reference[:3])
    list(data.validation(3))
    assert_same(take(data, 3), reference[3:])


def test_a_bad_record_stops_training_with_its_line(tmp_path: Path, build: Callable[..., TextData]) -> None:
    lines = [json.dumps({"text": f"document {number}"}) for number in range(10)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "{broken", "{broken"]))
    with pytest.raises(DataError, match=r"a\.jsonl:1[12]: not a JSON object"):
        take(build(Text(source=str(tmp_path / "a.jsonl"), tokenizer_vocab_size=280, validation_every=3)), 10)


def test_wrong_values(corpus: Text, build: Callable[..., TextData]) -> None:
    with pytest.raises(ConfigError, match="batch_size is 5"):
        build(corpus, 16, 5, process_count=2)
    with pytest.raises(ConfigError, match="process_index is 2"):
        build(corpus, process_index=2, process_count=2)
    with pytest.raises(ConfigError, match="sequence_length is 0"):
        build(corpus, 0)
    with pytest.raises(ConfigError, match=r"data\.seed is -1"):
        build(Text(source=corpus.source, seed=-1))
    with pytest.raises(ConfigError, match=r"validation_every is 1"):
        build(Text(source=corpus.source, validation_every=1))
    with pytest.raises(DataError, match="23 documents are too few to hold out one in 50"):
        build(Text(source=corpus.source))


def test_a_closed_stream_says_so(corpus: Text, build: Callable[..., TextData]) -> None:
    data = build(corpus)
    take(data, 1)
    data.train.close()
    data.train.close()
    with pytest.raises(DataError, match="closed"):
        take(data, 1)


HUB = Text(source="owner/name", tokenizer_vocab_size=280, validation_every=5)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_stream_is_shared_out_and_split(hub: list[str], build: Callable[..., TextData], processes: int) -> None:
    trained, validated = Counter[Pairs](), Counter[Pairs]()
    for index in range(processes):
        data = build(HUB, 16, 6, process_index=index, process_count=processes)
        documents = documents_of(take(data, 50 // processes), data.tokenizer.bos_id)
        trained += Counter(documents[:-1])  # the last is cut
        batches = list(data.validation(40))
        assert processes == 1 or len(batches) == 40
        validated += Counter(documents_of(batches, data.tokenizer.bos_id))
    assert validated == encoded(data, [text for text in hub if is_held_out(text, 5)])
    assert set(trained) == set(encoded(data, [text for text in hub if not is_held_out(text, 5)]))
    assert max(trained.values()) > 1  # several epochs


def test_a_stream_resumes_exactly(
    hub: list[str], build: Callable[..., TextData], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STREAM_WINDOW", 8)
    data = build(HUB)
    states, reference = [], []
    for _ in range(40):
        states.append(json.dumps(data.train.get_state()))
        reference += take(data, 1)
    assert json.loads(states[-1])["place"]["parent_state"]["parent_window_start_state"]["epoch"] >= 1
    for place in (0, 1, 7, 20, 30):
        resumed = build(HUB)
        resumed.train.set_state(json.loads(states[place]))
        assert_same(take(resumed, 5), reference[place : place + 5])
        again = build(HUB)
        again.train.set_state(json.loads(json.dumps(resumed.train.get_state())))
        assert_same(take(again, 4), reference[place + 5 : place + 9])


def test_a_stream_with_nothing_held_out_or_to_train_on(
    hub: list[str], build: Callable[..., TextData], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Text(source="owner/name", tokenizer_vocab_size=280, validation_every=10**9)
    with pytest.raises(DataError, match="no document of the streamed dataset is held out"):
        list(build(nothing).validation(3))
    monkeypatch.setattr("wholestep.data.hub.is_held_out", lambda text, every: True)
    with pytest.raises(DataError, match="no training document"):
        take(build(HUB), 1)
