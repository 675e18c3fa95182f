"""Qwen3's mixtures of experts: a small one to run anywhere, and the published sizes. Learning rates are Llama 3's of
like size; Qwen3's are not published."""

from __future__ import annotations

from wholestep.config.override import apply
from wholestep.models import qwen3_moe
from wholestep.models.decoder import Decoder
from wholestep.pipeline import Recipe
from wholestep.recipes.common import DEBUG_VOCABULARY, SPLASH, debug, published
from wholestep.recipes.registry import recipe


@recipe(qwen3_moe)
def qwen3_moe_debug() -> Recipe:
    """4M parameters on the Python standard library's sources: minutes on two CPU cores."""
    tree = debug(qwen3_moe.qwen3_moe_debug_config(vocab_size=DEBUG_VOCABULARY))
    # On two cores a step takes a sixth less than by `every_expert`.
    return apply(tree, ["model.layers.*.feed_forward.inner=ragged_dot"])


@recipe(qwen3_moe)
def qwen3_30b_a3b() -> Recipe:
    """Qwen3 30B-A3B: 48 layers, 8 of 128 experts; for 64 chips of TPU7x, two devices each."""
    return _published(qwen3_moe.qwen3_30b_a3b_config(), lr=3e-4)


@recipe(qwen3_moe)
def qwen3_235b_a22b() -> Recipe:
    """Qwen3 235B-A22B: 94 layers, 8 of 128 experts; for 64 chips of TPU7x, two devices each."""
    return _published(qwen3_moe.qwen3_235b_a22b_config(), lr=1.5e-4)


def _published(model: Decoder.Config, lr: float) -> Recipe:
    """With kernels for experts too: without them, every expert would see every token."""
    kernels = (SPLASH, "model.layers.*.feed_forward.inner=grouped_matmul")
    return published(model, lr=lr, devices=128, sequence_length=4096, rows_per_device=8, kernels=kernels)
