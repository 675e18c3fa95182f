from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from wholestep.data import open_source
from wholestep.data.hub import HubStream, HubTrainDocuments, is_held_out
from wholestep.errors import DataError


def train_documents(processes: int = 1, index: int = 0, seed: int = 0) -> HubTrainDocuments:
    source = open_source("owner/name")
    assert isinstance(source, HubStream)
    return HubTrainDocuments(source, (index, processes), 5, seed)


def test_all_documents_once(hub: list[str]) -> None:
    source = open_source("owner/name")
    assert isinstance(source, HubStream)
    assert sorted(source.texts()) == sorted(hub)
    assert list(source.texts()) == list(source.texts())


def test_name_and_config(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Builder:
        hash = "commit"

        def __init__(self, *args: str | None) -> None:
            calls.append(args)

        def as_streaming_dataset(self, split: str) -> list[Any]:
            assert split == "train"
            return []

    monkeypatch.setattr("datasets.load_dataset_builder", Builder)
    sources = [open_source(spec) for spec in ("owner/name:config", "owner/name", "name")]
    assert calls == [("owner/name", "config"), ("owner/name", None), ("name", None)]
    monkeypatch.setattr(Builder, "hash", "next commit")
    sources.append(open_source("name"))
    assert len({source.fingerprint for source in sources}) == 4


@pytest.mark.parametrize("processes", [1, 2, 3])  # 2 divides the files between them, 3 cannot and skips documents
def test_every_epoch_has_every_training_document_once(hub: list[str], processes: int) -> None:
    expected = sorted(text for text in hub if not is_held_out(text, 5))
    held_out = [text for text in hub if is_held_out(text, 5)]
    assert 3 < len(held_out) < 25
    source = open_source("owner/name")
    assert isinstance(source, HubStream)
    orders: list[list[str]] = [[], [], []]
    found = []
    for index in range(processes):
        iterator = iter(train_documents(processes, index))
        while (text := next(iterator)) and (epoch := iterator.get_state()["epoch"]) < 3:
            orders[epoch].append(text)
        found += source.held_out(index, processes, 5)
    assert sorted(found) == sorted(held_out)
    assert [sorted(order) for order in orders] == [expected] * 3
    assert orders[0] != orders[1] != orders[2]  # the files come in another order
    if processes == 1:
        assert list(islice(train_documents(seed=1), len(expected))) != orders[0]


def test_resume_is_exact_at_every_document(hub: list[str]) -> None:
    reference = iter(train_documents())
    states, texts = [], []
    for _ in range(130):  # into the third epoch
        states.append(json.dumps(reference.get_state()))
        texts.append(next(reference))
    for place in range(0, 120, 11):
        resumed = iter(train_documents())
        resumed.set_state(json.loads(states[place]))
        assert list(islice(resumed, 4)) == texts[place : place + 4]
        again = iter(train_documents())
        again.set_state(json.loads(json.dumps(resumed.get_state())))
        assert list(islice(again, 4)) == texts[place + 4 : place + 8]


def test_errors_are_one_line(hub: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    (tmp_path / "shard0.jsonl").write_text('{"body": "a"}\n')
    source = open_source("owner/name")
    assert isinstance(source, HubStream)
    with pytest.raises(DataError, match=r"'owner/name': field 'text' is NoneType.*\['body'"):
        next(iter(source.texts()))

    def missing(*args: Any) -> Any:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'owner/name' doesn't exist\nand more")

    monkeypatch.setattr("datasets.load_dataset_builder", missing)
    with pytest.raises(DataError, match=r"'owner/name'.*doesn't exist.*mend the path or name") as raised:
        open_source("owner/name")
    assert "\n" not in str(raised.value)
