"""The loss of the held-out documents, and what to hold it against."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jax.experimental import multihost_utils

from wholestep.data import TextData
from wholestep.xla.program import Program, State


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The held-out documents' loss.

    Attributes:
        loss: mean over their tokens, in nats.
        unigram_entropy: of the same tokens, in nats. No model that ignores context has a lower loss on them, not even
            one that knows how often each token occurs in this very text.
        tokens: how many there are.
    """

    loss: float
    unigram_entropy: float
    tokens: int


def validate(program: Program, state: State, data: TextData, batches: int) -> Validation:
    """Run `program`, an evaluation step, over at most `batches` batches of held-out documents. Each token counts
    alike, whichever batch it is in."""
    sums, counts = [], np.zeros(data.tokenizer.vocab_size, np.int64)
    for batch in data.validation(batches):
        _, metrics = program(state, program.place_batch(batch))
        sums.append((metrics["loss_sum"], metrics["weight"]))
        labels = batch["labels"]
        counts += np.bincount(labels[labels >= 0], minlength=len(counts))
    if jax.process_count() > 1:
        counts = multihost_utils.process_allgather(counts).sum(0)
    loss, weight = np.asarray(jax.device_get(sums), np.float64).sum(0)
    frequencies = counts[counts > 0] / counts.sum()
    entropy = float(-(frequencies * np.log(frequencies)).sum())
    return Validation(loss=float(loss / weight), unigram_entropy=entropy, tokens=int(weight))
