"""A recipe that trains in a second, on a text of its own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from wholestep.config.override import replace
from wholestep.pipeline import Recipe
from wholestep.recipes.registry import find


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty documents of words that follow each other with some regularity."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    words = [rng.choice("bcdfgklmnprst") + rng.choice("aeiou") + rng.choice("bdklmnrst") for _ in range(40)]
    for number in range(60):
        start = rng.randrange(len(words))
        text = " ".join(words[(start + 3 * i + rng.randrange(2)) % len(words)] for i in range(rng.randrange(50, 250)))
        (folder / f"{number:02}.txt").write_text(text)
    return folder


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHOLESTEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


OVERRIDES = {
    "model.layers": 2,
    "model.dim": 36,
    "model.vocab_size": 330,
    "model.layers.*.attention.num_heads": 4,
    "model.layers.*.attention.num_kv_heads": 2,
    "model.layers.*.attention.head_dim": 10,
    "model.layers.*.feed_forward.hidden_dim": 44,
    "data.tokenizer_vocab_size": 320,
    "data.validation_every": 10,
    "optimizer.lr": 1e-2,
    "schedule.warmup_steps": 3,
    "sequence_length": 24,
    "batch_size": 16,
    "microbatches": 2,
    "steps": 10,
    "evaluation.every": 4,
    "checkpoints.every": 5,
}


@pytest.fixture
def overrides(corpus: Path) -> dict[str, object]:
    """Path -> value, on top of `llama3_debug`."""
    return {**OVERRIDES, "data.source": str(corpus)}


@pytest.fixture
def recipe(overrides: dict[str, object]) -> Recipe:
    tree = find("llama3_debug").function()
    for path, value in overrides.items():
        tree = replace(tree, path, value)
    return tree
