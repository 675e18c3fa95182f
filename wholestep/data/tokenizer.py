"""Text to token ids: a tokenizer from a Hugging Face folder or name, or a byte-level BPE trained on the source."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from wholestep.data.cache import cached_directory, digest
from wholestep.data.hub import HubStream
from wholestep.data.sources import Source
from wholestep.errors import ConfigError, DataError

log = logging.getLogger(__name__)

BOS = "<|begin_of_text|>"
EOS = "<|end_of_text|>"
SMALLEST_VOCABULARY = 256 + 2  # every byte, and the two above
TRAINING_BYTES = 16 * 2**20
TRAINING_DOCUMENTS = 65_536
# Raise it when what is trained from the same documents changes: it is part of the cache's key.
TRAINER_VERSION = "1"


class Tokenizer:
    """Token ids of text, always within the document's marks: `[bos_id] + text + [eos_id]`. Pickles; safe in threads.

    `vocab_size` is the smallest model vocabulary that holds every id. `bos_id` is None when the tokenizer has no such
    token, and a document then starts with its text. Text that spells a special token is encoded as plain text: no
    document can forge its own end. `fingerprint` is a key of everything that decides the ids.
    """

    def __init__(self, backend: tokenizers.Tokenizer, bos: str | None, eos: str, pretrained: Any = None) -> None:
        """`pretrained` is the `transformers` tokenizer that `backend` is from, which `save_pretrained` then keeps."""
        self._serialized = backend.to_str()
        self._bos, self._eos = bos, eos
        self._pretrained = pretrained
        self._open()

    def _open(self) -> None:
        # A copy of its own: how a tokenizer from elsewhere cuts and pads is not ours to inherit or change.
        backend = tokenizers.Tokenizer.from_str(self._serialized)
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        self._backend = backend
        self.vocab_size: int = 1 + max(backend.get_vocab(with_added_tokens=True).values())
        self.bos_id: int | None = None if self._bos is None else backend.token_to_id(self._bos)
        eos_id = backend.token_to_id(self._eos)
        assert eos_id is not None, f"{self._eos!r} is not in the vocabulary"
        self.eos_id: int = eos_id
        self.fingerprint = digest(self._serialized, str(self.bos_id), str(self.eos_id))

    def __getstate__(self) -> dict[str, Any]:
        # tokenizers' own pickling forgets `encode_special_tokens`.
        return {name: getattr(self, name) for name in ("_serialized", "_bos", "_eos", "_pretrained")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def _with_marks(self, ids: list[int]) -> np.ndarray:
        before = [] if self.bos_id is None else [self.bos_id]
        return np.array([*before, *ids, self.eos_id], np.int32)

    def encode(self, text: str) -> np.ndarray:
        """int32 `[tokens]` of one document, with its marks."""
        # As a batch of one: unlike the backend's `encode`, that leaves the GIL to the other threads (3x with two).
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of every text, on all cores."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._with_marks(encoding.ids) for encoding in encodings]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of ids, without special tokens."""
        return self._backend.decode([int(token) for token in ids], skip_special_tokens=True)

    def save_pretrained(self, directory: str | Path) -> None:
        """Write files that `transformers.AutoTokenizer.from_pretrained(directory)` loads."""
        pretrained = self._pretrained
        if pretrained is None:
            from transformers import PreTrainedTokenizerFast

            pretrained = PreTrainedTokenizerFast(
                tokenizer_object=tokenizers.Tokenizer.from_str(self._serialized),
                bos_token=self._bos,
                eos_token=self._eos,
                clean_up_tokenization_spaces=False,
            )
        pretrained.save_pretrained(str(directory))


def load_tokenizer(spec: str | None, source: Source, vocab_size: int) -> Tokenizer:
    """The tokenizer that `spec` names: a folder in Hugging Face's format or a name on its Hub.

    With `spec=None`, a byte-level BPE of `vocab_size` ids (or fewer, when the documents have no more to merge) trained
    on a sample of `source` the first time and kept in the cache. Training is deterministic: every host makes the same.
    Raises `DataError` when there is no such tokenizer or it cannot mark the end of a document, and `ConfigError` when
    `vocab_size` cannot hold the bytes.
    """
    if spec is not None:
        return load_pretrained(spec)
    if vocab_size < SMALLEST_VOCABULARY:
        raise ConfigError(
            f"tokenizer_vocab_size is {vocab_size}; a byte-level tokenizer needs at least {SMALLEST_VOCABULARY}"
        )
    key = digest(source.fingerprint, str(vocab_size), TRAINER_VERSION)
    directory = cached_directory("tokenizers", key, lambda folder: _train(source, vocab_size, folder))
    return Tokenizer(tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")), BOS, EOS)


def load_pretrained(spec: str) -> Tokenizer:
    """The tokenizer in a folder in Hugging Face's format, or by its name on the Hub. Raises `DataError`."""
    from transformers import AutoTokenizer

    try:
        pretrained = AutoTokenizer.from_pretrained(spec, use_fast=True, trust_remote_code=False)
    except Exception as error:  # the hub's client raises its own, httpx's and the file system's errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"tokenizer {spec!r}: neither a folder in Hugging Face's format nor a name on its Hub ({reason}); mend it, "
            "or leave `tokenizer` unset to train one on the source"
        ) from error
    if not getattr(pretrained, "is_fast", False):
        raise DataError(f"tokenizer {spec!r}: has no tokenizer.json; convert it with transformers' fast tokenizers")
    if pretrained.eos_token is None:
        raise DataError(f"tokenizer {spec!r}: has no end-of-text token; set `eos_token` in its tokenizer_config.json")
    return Tokenizer(pretrained.backend_tokenizer, pretrained.bos_token, pretrained.eos_token, pretrained)


def _train(source: Source, vocab_size: int, directory: Path) -> None:
    log.info("training a byte-level BPE of %d tokens on the source, once", vocab_size)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(source), trainer)
    # For others who load it: a prompt starts with BOS and is left open.
    bos_id = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos_id)])
    tokenizer.save(str(directory / "tokenizer.json"))
    log.info("trained: %d tokens", tokenizer.get_vocab_size())


def _sample(source: Source) -> Iterator[str]:
    """A seeded sample of the documents (of a stream, its start), at most `TRAINING_BYTES` long."""
    if isinstance(source, HubStream):
        texts = source.texts()
    else:
        chosen = np.random.default_rng(0).choice(len(source), min(len(source), TRAINING_DOCUMENTS), replace=False)
        texts = (source[int(index)] for index in chosen)
    left = TRAINING_BYTES
    for text in texts:
        data = text.encode("utf-8", "replace")[:left]
        yield data.decode("utf-8", "ignore")  # the cut may fall within a character
        left -= len(data)
        if not left:
            return
