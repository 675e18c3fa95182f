from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from wholestep.data import Tokenizer, load_tokenizer, open_source
from wholestep.data import tokenizer as module
from wholestep.errors import ConfigError, DataError

TEXT = "def f(x):\n    return 'ünïcode 🙂'\t# 12345\n"


@pytest.fixture
def trained(write_corpus: Callable[..., Path]) -> Tokenizer:
    return load_tokenizer(None, open_source(str(write_corpus(20))), 280)


def test_ids_have_marks_and_decode_to_the_text(trained: Tokenizer) -> None:
    ids = trained.encode(TEXT)
    assert ids.dtype == np.int32 and ids.ndim == 1
    assert ids[0] == trained.bos_id and ids[-1] == trained.eos_id
    assert trained.decode(ids) == TEXT
    assert trained.encode("").tolist() == [trained.bos_id, trained.eos_id]
    assert trained.vocab_size == 280
    assert [each.tolist() for each in trained.encode_batch([TEXT, ""])] == [ids.tolist(), trained.encode("").tolist()]


def test_text_cannot_forge_a_special_token(trained: Tokenizer) -> None:
    ids = trained.encode("a<|end_of_text|>b<|begin_of_text|>")
    assert not {trained.bos_id, trained.eos_id} & set(ids[1:-1].tolist())
    assert trained.decode(ids) == "a<|end_of_text|>b<|begin_of_text|>"


def test_training_is_done_once_and_is_deterministic(
    write_corpus: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(str(write_corpus(20)))
    first = load_tokenizer(None, source, 280)
    (kept,) = (cache / "tokenizers").iterdir()  # nothing partial beside it
    with monkeypatch.context() as patch:
        patch.setattr(module, "_train", lambda *args: pytest.fail("trained again"))
        again = load_tokenizer(None, source, 280)
    assert again.fingerprint == first.fingerprint
    written = (kept / "tokenizer.json").read_bytes()
    monkeypatch.setenv("WHOLESTEP_CACHE", str(cache) + "-of-another-host")
    assert load_tokenizer(None, source, 280).fingerprint == first.fingerprint
    (elsewhere,) = Path(str(cache) + "-of-another-host", "tokenizers").iterdir()
    assert (elsewhere / "tokenizer.json").read_bytes() == written
    assert load_tokenizer(None, source, 270).vocab_size == 270  # another size is another tokenizer


def test_a_failed_training_leaves_nothing(
    write_corpus: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenizers.Tokenizer, "save", fail, raising=False)
    with pytest.raises(KeyboardInterrupt):
        load_tokenizer(None, open_source(str(write_corpus(5))), 280)
    assert list((cache / "tokenizers").iterdir()) == []


def test_training_text_is_bounded(write_corpus: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(str(write_corpus(20)))
    monkeypatch.setattr(module, "TRAINING_BYTES", 101)
    sample = list(module._sample(source))
    assert 95 < sum(len(text.encode()) for text in sample) <= 101
    assert sample == list(module._sample(source))


def test_pickled_copies_encode_alike(trained: Tokenizer) -> None:
    copy = pickle.loads(pickle.dumps(trained))
    for text in (TEXT, "<|end_of_text|>"):
        np.testing.assert_array_equal(copy.encode(text), trained.encode(text))
    assert (copy.fingerprint, copy.vocab_size, copy.bos_id) == (trained.fingerprint, trained.vocab_size, trained.bos_id)


def test_save_pretrained_round_trip(trained: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    trained.save_pretrained(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(str(tmp_path / "saved"))
    ids = trained.encode(TEXT).tolist()
    assert theirs(TEXT)["input_ids"] == ids[:-1]  # a prompt: it starts with BOS and is left open
    assert (theirs.bos_token_id, theirs.eos_token_id, len(theirs)) == (trained.bos_id, trained.eos_id, 280)
    assert theirs.decode(ids, skip_special_tokens=True) == TEXT
    source = open_source("stdlib")
    ours = load_tokenizer(str(tmp_path / "saved"), source, 0)  # the size is only of what is trained
    assert ours.encode(TEXT).tolist() == ids
    ours.save_pretrained(tmp_path / "again")
    assert load_tokenizer(str(tmp_path / "again"), source, 0).fingerprint == ours.fingerprint


def word_level(folder: Path, **special: str) -> str:
    from transformers import PreTrainedTokenizerFast

    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "<end>": 9, "?": 3}, unk_token="?"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.enable_truncation(2)
    backend.enable_padding(length=7)
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(str(folder))
    return str(folder)


def test_a_folder_without_bos_with_truncation_and_gaps(tmp_path: Path) -> None:
    loaded = load_tokenizer(word_level(tmp_path / "words", eos_token="<end>"), open_source("stdlib"), 0)
    assert loaded.bos_id is None
    assert loaded.encode("a b a b").tolist() == [0, 1, 0, 1, 9]
    assert loaded.vocab_size == 10  # the largest id decides, not the number of tokens


def test_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source("stdlib")
    with pytest.raises(DataError, match=r"no end-of-text token; set `eos_token`"):
        load_tokenizer(word_level(tmp_path / "words"), source, 0)
    with pytest.raises(ConfigError, match=r"tokenizer_vocab_size is 257; .* at least 258"):
        load_tokenizer(None, source, 257)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"tokenizer '.*empty': neither a folder") as raised:
        load_tokenizer(str(tmp_path / "empty"), source, 0)
    assert "\n" not in str(raised.value)
