from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from grain._src.python.dataset.transformations import shuffle as grain_shuffle
from grain.experimental import WindowShuffleIterDataset

from wholestep.data import Text, TextData, open_source
from wholestep.data import text as module
from wholestep.data.documents import Documents
from wholestep.data.hub import HubTrainDocuments, is_held_out
from wholestep.data.text import Batch
from wholestep.errors import ConfigError, DataError

FIELDS = ["tokens", "labels", "positions", "segment_ids"]
Pairs = tuple[tuple[int, int], ...]
LETTERS = "ABCDEFGHIJKLMNOPQRST"
# The same numbers as grain's own; it takes a millisecond for each of a few, and these tests ask for them over and over.
index_shuffle = cache(grain_shuffle.index_shuffle.index_shuffle)
SHUFFLED = {name: getattr(module, name) for name in ("SHUFFLED_TOKENS", "SHUFFLED_BATCHES")}


def shuffle(monkeypatch: pytest.MonkeyPatch, **constants: int) -> None:
    for name, value in constants.items():
        monkeypatch.setattr(module, name, value)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 20 rows of 16 tokens, fewer than an epoch has; of 106 rows of 3; and of two batches if more."""
    shuffle(monkeypatch, SHUFFLED_TOKENS=320, SHUFFLED_BATCHES=2)
    monkeypatch.setattr(grain_shuffle.index_shuffle, "index_shuffle", index_shuffle)


@pytest.fixture
def corpus(write_corpus: Callable[..., Path]) -> Text:
    """23 documents; 19 to train on, 4 held out."""
    return Text(source=str(write_corpus(23)), tokenizer_vocab_size=280, validation_every=5)


@pytest.fixture
def letters(tmp_path: Path) -> Text:
    """20 documents, each of one letter and three rows of 16 long; 16 to train on, 4 held out. Every row of theirs
    starts a document or goes on with one, and the sixteen are a whole number of windows of 12 rows."""
    lines = [json.dumps({"text": letter * 47}) for letter in LETTERS]
    (tmp_path / "letters.jsonl").write_text("\n".join(lines))
    return Text(source=str(tmp_path / "letters.jsonl"), tokenizer_vocab_size=258, validation_every=5)


@pytest.fixture
def build() -> Iterator[Callable[..., TextData]]:
    built: list[TextData] = []

    def make(text: Text, length: int = 16, rows: int = 4, **processes: int) -> TextData:
        built.append(text.build(sequence_length=length, batch_size=rows, **processes))
        return built[-1]

    yield make
    for data in built:
        data.train.close()


@pytest.fixture
def build_in_order(build: Callable[..., TextData], monkeypatch: pytest.MonkeyPatch) -> Callable[..., TextData]:
    """`build` without the shuffle of rows: they come in the order in which documents were packed into them."""

    def only_documents(parent: grain.IterDataset, **window: int) -> grain.IterDataset:
        return WindowShuffleIterDataset(parent, **window) if isinstance(parent, HubTrainDocuments) else parent

    def make(*arguments: Any, **processes: int) -> TextData:
        with monkeypatch.context() as patch:
            patch.setattr(module, "WindowShuffleIterDataset", only_documents)
            return build(*arguments, **processes)

    return make


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


def rows_of(batches: list[Batch]) -> list[tuple[bytes, ...]]:
    """Every row, all its fields together."""
    return [tuple(field.tobytes() for field in row) for batch in batches for row in zip(*batch.values(), strict=True)]


def assert_shuffled(batches: list[Batch], in_order: list[Batch], window: int, windows: int) -> None:
    """The rows of every window are those of the same window in order, no more and no fewer, in an order of its own."""
    shuffled, ordered = rows_of(batches), rows_of(in_order)
    orders = {tuple(range(window))}
    for start in range(0, windows * window, window):
        one, other = shuffled[start : start + window], ordered[start : start + window]
        assert len(one) == window and Counter(one) == Counter(other)
        assert Counter(one[: window // 2]) != Counter(other[: window // 2])  # not two smaller windows
        orders.add(tuple(other.index(row) for row in one))
    assert len(orders) == windows + 1


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


def test_every_epoch_has_every_document_once_in_another_order(
    corpus: Text, build_in_order: Callable[..., TextData]
) -> None:
    data = build_in_order(corpus)
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


@pytest.mark.parametrize(
    ("length", "window", "windows"),
    [(16, 20, 8), (3, 106, 4), (200, 8, 3)],  # shorter than an epoch; not a whole number of batches; of several epochs
)
def test_rows_are_shuffled_within_windows(
    corpus: Text,
    build: Callable[..., TextData],
    build_in_order: Callable[..., TextData],
    length: int,
    window: int,
    windows: int,
) -> None:
    count = -(-window * windows // 4)
    in_order = take(build_in_order(corpus, length), count)
    epoch = encoded(build(corpus), trained_on(texts_of(corpus)))
    assert len(pairs_of(in_order)) > 2 * sum(map(len, epoch))
    assert_shuffled(take(build(corpus, length), count), in_order, window, windows)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_every_pair_is_trained_on_once_an_epoch_by_one_process(
    letters: Text, build: Callable[..., TextData], monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    shuffle(monkeypatch, SHUFFLED_TOKENS=12 * 16)
    epochs = 4
    of_process = []
    for index in range(processes):
        data = build(letters, 16, 4, process_index=index, process_count=processes)
        batches = take(data, 12 * epochs)  # 48 rows an epoch, for all processes together
        of_process.append([pairs_of(batches[epoch * 12 : (epoch + 1) * 12]) for epoch in range(epochs)])
    documents = encoded(data, [letter * 47 for letter in trained_on([*LETTERS])])
    expected = Counter(pair for document in documents for pair in document)
    for pairs in zip(*of_process, strict=True):  # epoch by epoch
        assert sum(map(Counter, pairs), Counter()) == expected
        inner = [{pair for pair in own if pair[0] == pair[1]} for own in pairs]  # tells which documents
        assert sum(map(len, inner)) == len(set().union(*inner)) == 16
    for own in of_process:
        assert len(set(map(tuple, own))) == epochs  # each in another order


@pytest.mark.parametrize(("length", "rows", "window"), [(512, 8, 512), (1024, 64, 512)])
def test_a_batch_of_a_real_run_mixes_documents(
    tmp_path: Path,
    build: Callable[..., TextData],
    build_in_order: Callable[..., TextData],
    monkeypatch: pytest.MonkeyPatch,
    length: int,
    rows: int,
    window: int,
) -> None:
    shuffle(monkeypatch, **SHUFFLED)
    texts = ["".join(f"{letter}{number:06}" for number in range(7_300)) for letter in LETTERS[:12]]  # 51,100 tokens
    (tmp_path / "long.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    text = Text(source=str(tmp_path / "long.jsonl"), tokenizer_vocab_size=258, validation_every=6)
    data = build(text, length, rows)
    batches, in_order = take(data, window // rows), take(build_in_order(text, length, rows), window // rows)
    assert_shuffled(batches, in_order, window, 1)

    def mixed(batch: Batch) -> int:
        return len({*data.tokenizer.decode(np.unique(batch["tokens"]))} & {*LETTERS})

    assert min(map(mixed, batches)) > 1
    if rows == 8:  # what the shuffle is for
        assert np.mean([mixed(batch) == 1 for batch in in_order]) > 0.8


def test_the_largest_seed_of_grain(
    corpus: Text, build: Callable[..., TextData], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Largest:
        def __init__(self, entropy: object) -> None: ...

        def generate_state(self, count: int) -> np.ndarray:
            return np.full(count, 2**32 - 1, np.uint32)

    monkeypatch.setattr("numpy.random.SeedSequence", Largest)
    assert len(take(build(corpus), 30)) == 30  # grain counts on from it with every window


def test_two_builds_are_the_same_and_another_seed_is_not(corpus: Text, build: Callable[..., TextData]) -> None:
    first = take(build(corpus), 12)
    assert_same(first, take(build(corpus), 12))
    other = Text(source=corpus.source, tokenizer_vocab_size=280, validation_every=5, seed=1)
    assert pairs_of(first) != pairs_of(take(build(other), 12))


@pytest.mark.parametrize(
    ("source", "length", "rows", "count"),
    [("corpus", 3, 4, 112), ("corpus", 16, 4, 28), ("corpus", 200, 2, 9), ("letters", 16, 4, 28)],
)
def test_resume_is_exact_once_twice_and_three_times(
    request: pytest.FixtureRequest,
    build: Callable[..., TextData],
    source: str,
    length: int,
    rows: int,
    count: int,
) -> None:
    text = request.getfixturevalue(source)
    data = build(text, length, rows)
    states, reference = [json.dumps(data.train.get_state())], []
    for _ in range(count):
        reference += take(data, 1)
        states.append(json.dumps(data.train.get_state()))
    assert json.loads(states[-1])["place"]["window_index"] >= 4
    if source == "letters":  # no document is cut where a window starts; JSON makes a list of grain's (-1, -1)
        assert '"remainder_slices": {"pairs": [-1, -1]}' in states[12]
    for place in range(count + 1):
        resumed = build(text, length, rows)
        resumed.train.set_state(json.loads(states[place]))
        assert json.dumps(resumed.train.get_state()) == states[place]
        following = min(7, count - place)  # of rows of 16, five batches are a window; of 3, 26.5; of 200, two
        assert_same(take(resumed, following), reference[place : place + following])
        assert json.dumps(resumed.train.get_state()) == states[place + following]
        resumed.train.close()
    step = count // 4
    for first in (1, 3):
        state = json.loads(states[first])
        for place in range(first, first + 3 * step, step):  # each from the state that the one before saved
            resumed = build(text, length, rows)
            resumed.train.set_state(state)
            assert_same(take(resumed, step), reference[place : place + step])
            state = json.loads(json.dumps(resumed.train.get_state()))
    data.train.set_state(json.loads(states[0]))  # also back, in a stream that has run
    assert_same(take(data, count), reference)


def test_the_state_is_of_the_batches_handed_out(corpus: Text, build: Callable[..., TextData]) -> None:
    data = build(corpus)
    for number in range(1, 12):
        take(data, 1)
        before = data.train.get_state()
        time.sleep(0.02)  # the next batches are made, where five are a window also of the next window
        assert data.train.get_state() == before
        assert before["place"]["pos_in_window"] == 1 + (4 * number - 1) % 20
    following = take(data, 9)
    data.train.set_state(before)
    assert_same(take(data, 9), following)
    state = data.train.get_state()
    copy = data.train.get_state()
    copy["place"]["parent_window_start_state"]["parent_state"] = "spoiled"  # does not reach the stream
    copy["place"]["pos_in_window"] = -1
    assert data.train.get_state() == state


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


def test_processes_share_out_every_epoch(
    corpus: Text, build: Callable[..., TextData], build_in_order: Callable[..., TextData]
) -> None:
    found: Counter[Pairs] = Counter()
    for index in range(3):
        processes = {"process_index": index, "process_count": 3}
        data = build_in_order(corpus, 16, 6, **processes)
        batches = take(data, 60)
        assert batches[0]["tokens"].shape == (2, 16)
        own = len(range(index, 19, 3))  # of the first epoch's 19
        found += Counter(documents_of(batches, data.tokenizer.bos_id)[:own])
        assert_shuffled(take(build(corpus, 16, 6, **processes), 60), batches, 20, 6)
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
def test_a_stream_is_shared_out_and_split(
    hub: list[str], build: Callable[..., TextData], build_in_order: Callable[..., TextData], processes: int
) -> None:
    trained, validated = Counter[Pairs](), Counter[Pairs]()
    for index in range(processes):
        place = {"process_index": index, "process_count": processes}
        data = build_in_order(HUB, 16, 6, **place)
        in_order = take(data, 50)
        assert_shuffled(take(build(HUB, 16, 6, **place), 50), in_order, 20, 3)
        documents = documents_of(in_order, data.tokenizer.bos_id)
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
    monkeypatch.setattr(module, "STREAM_WINDOW", 16)
    data = build(HUB)
    states, reference = [], []
    for _ in range(32):
        states.append(json.dumps(data.train.get_state()))
        reference += take(data, 1)
    rows = json.loads(states[-1])["place"]["parent_window_start_state"]
    assert rows["parent_state"]["parent_window_start_state"]["epoch"] >= 1
    for place in (0, 1, 2, 3, 4, 5, 7, 10, 22):  # a window of rows is five batches
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
