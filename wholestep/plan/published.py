"""What others measured with the models and at the scales of our recipes: to hold predictions against."""

from __future__ import annotations

from dataclasses import dataclass

TORCHTITAN = "Google, 2026-10-20: training PyTorch models on TPU with TorchTitan"
MAXTEXT = "MaxText's published TPU recipes (JAX)"


@dataclass(frozen=True, kw_only=True)
class Published:
    """One result.

    Attributes:
        recipe: ours, of the same model on as many chips.
        metric: `s/step`, `tokens/s/chip` or `MFU` (from 0 to 1).
        value: as published.
        source: whose.
        differs: in what the published run is known to differ from the recipe; empty if in nothing known.
    """

    recipe: str
    metric: str
    value: float
    source: str
    differs: str = ""


METRICS = {"s/step": "expected", "tokens/s/chip": "tokens_per_second_per_chip", "MFU": "mfu"}
"""The field of a report's `Speed` that predicts each."""

_BATCH = "batch and settings are not published"

RESULTS = (
    Published(
        recipe="llama3_8b_v6e_8",
        metric="s/step",
        value=3.443,
        source=MAXTEXT,
        differs="layer inputs and more in the host's memory",
    ),
    Published(recipe="llama3_70b_tpu7x_64", metric="s/step", value=12.20, source=MAXTEXT),
    Published(recipe="llama3_405b_tpu7x_128", metric="MFU", value=0.57, source=TORCHTITAN, differs=_BATCH),
    Published(recipe="llama3_405b_tpu7x_1024", metric="MFU", value=0.57, source=TORCHTITAN, differs=_BATCH),
    Published(
        recipe="qwen3_8b_tpu7x_4",
        metric="MFU",
        value=0.515,
        source=TORCHTITAN,
        differs="51% to 52%; chips, batch and settings are not published",
    ),
    Published(recipe="qwen3_235b_a22b_tpu7x_64", metric="tokens/s/chip", value=4568, source=TORCHTITAN),
    Published(recipe="qwen3_235b_a22b_tpu7x_256", metric="s/step", value=30.87, source=MAXTEXT),
    Published(
        recipe="qwen3_235b_a22b_tpu7x_256",
        metric="MFU",
        value=0.32,
        source=TORCHTITAN,
        differs="'about'; fp32 gradient reductions, batch not published",
    ),
    Published(recipe="qwen3_235b_a22b_tpu7x_1024", metric="MFU", value=0.3242, source=TORCHTITAN, differs=_BATCH),
    Published(
        recipe="qwen3_235b_a22b_tpu7x_8x1024", metric="tokens/s/chip", value=4208, source=TORCHTITAN, differs=_BATCH
    ),
    Published(recipe="muse_glimmer_30b_tpu7x_64", metric="tokens/s/chip", value=5848, source=TORCHTITAN),
    Published(recipe="muse_glimmer_30b_tpu7x_128", metric="MFU", value=0.434, source=TORCHTITAN),
)
