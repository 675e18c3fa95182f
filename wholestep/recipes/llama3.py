"""Llama 3: a small one to run anywhere, and the published family."""

from __future__ import annotations

from wholestep.models import llama3
from wholestep.pipeline import Recipe
from wholestep.recipes.common import DEBUG_VOCABULARY, debug, published
from wholestep.recipes.registry import recipe


@recipe(llama3)
def llama3_debug() -> Recipe:
    """4M parameters on the Python standard library's sources: minutes on two CPU cores."""
    return debug(llama3.llama3_debug_config(vocab_size=DEBUG_VOCABULARY))


@recipe(llama3)
def llama3_1b() -> Recipe:
    """Llama 3.2 1B: 16 layers, tied embeddings, RoPE scaled 32x."""
    return published(llama3.llama3_1b_config(), lr=3e-4, devices=8)


@recipe(llama3)
def llama3_3b() -> Recipe:
    """Llama 3.2 3B: 28 layers, tied embeddings, RoPE scaled 32x."""
    return published(llama3.llama3_3b_config(), lr=3e-4, devices=8)


@recipe(llama3)
def llama3_8b() -> Recipe:
    """Llama 3.1 8B: 32 layers, RoPE scaled 8x."""
    return published(llama3.llama3_8b_config(), lr=3e-4, devices=8)


@recipe(llama3)
def llama3_70b() -> Recipe:
    """Llama 3.1 70B: 80 layers, RoPE scaled 8x."""
    return published(llama3.llama3_70b_config(), lr=1.5e-4, devices=128)


@recipe(llama3)
def llama3_405b() -> Recipe:
    """Llama 3.1 405B: 126 layers, RoPE scaled 8x."""
    return published(llama3.llama3_405b_config(), lr=8e-5, devices=256)
