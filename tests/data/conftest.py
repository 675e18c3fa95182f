"""A cache of its own for every test, and small corpora."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHOLESTEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def write_corpus(tmp_path: Path) -> Callable[..., Path]:
    """A folder of `count` distinct text files of very different lengths, one of them empty."""

    def write(count: int, name: str = "corpus") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        draw = random.Random(count)
        for number in range(count):
            words = " ".join(draw.choice(["alpha", "beta", "gamma", "ünïcode"]) for _ in range(draw.randrange(1, 40)))
            (folder / f"{number:03}.txt").write_text(f"{number} {words}" if number else "", encoding="utf-8")
        return folder

    return write


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A dataset of four files that every hub name stands for; its texts."""
    import datasets

    texts = [f"document {number} " + "word " * (number % 7) for number in range(60)]
    files = [tmp_path / f"shard{shard}.jsonl" for shard in range(4)]
    for shard, file in enumerate(files):
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[shard::4]))
    real = datasets.load_dataset_builder

    def load(name: str, config: str | None) -> datasets.DatasetBuilder:
        return real("json", data_files={"train": [str(file) for file in files]})

    monkeypatch.setattr("datasets.load_dataset_builder", load)
    return texts
