"""Qwen3's dense models: a small one to run anywhere, and the published family. Learning rates are Llama 3's of like
size; Qwen3's are not published."""

from __future__ import annotations

from wholestep.models import qwen3
from wholestep.pipeline import Recipe
from wholestep.recipes.common import DEBUG_VOCABULARY, debug, published
from wholestep.recipes.registry import recipe


@recipe(qwen3)
def qwen3_debug() -> Recipe:
    """4M parameters on the Python standard library's sources: minutes on two CPU cores."""
    return debug(qwen3.qwen3_debug_config(vocab_size=DEBUG_VOCABULARY))


@recipe(qwen3)
def qwen3_0_6b() -> Recipe:
    """Qwen3 0.6B: 28 layers, tied embeddings."""
    return published(qwen3.qwen3_0_6b_config(), lr=3e-4, devices=8)


@recipe(qwen3)
def qwen3_1_7b() -> Recipe:
    """Qwen3 1.7B: 28 layers, tied embeddings."""
    return published(qwen3.qwen3_1_7b_config(), lr=3e-4, devices=8)


@recipe(qwen3)
def qwen3_4b() -> Recipe:
    """Qwen3 4B: 36 layers, tied embeddings."""
    return published(qwen3.qwen3_4b_config(), lr=3e-4, devices=8)


@recipe(qwen3)
def qwen3_8b() -> Recipe:
    """Qwen3 8B: 36 layers."""
    return published(qwen3.qwen3_8b_config(), lr=3e-4, devices=8)


@recipe(qwen3)
def qwen3_14b() -> Recipe:
    """Qwen3 14B: 40 layers."""
    return published(qwen3.qwen3_14b_config(), lr=3e-4, devices=16)


@recipe(qwen3)
def qwen3_32b() -> Recipe:
    """Qwen3 32B: 64 layers."""
    return published(qwen3.qwen3_32b_config(), lr=1.5e-4, devices=64)
