"""Muse Glimmer's text decoder: a small one to run anywhere, and the published size."""

from __future__ import annotations

from wholestep.models import muse_glimmer
from wholestep.pipeline import Recipe
from wholestep.recipes.common import DEBUG_VOCABULARY, debug, published
from wholestep.recipes.registry import recipe


@recipe(muse_glimmer)
def muse_glimmer_debug() -> Recipe:
    """5M parameters on the Python standard library's sources: minutes on two CPU cores."""
    return debug(muse_glimmer.muse_glimmer_debug_config(vocab_size=DEBUG_VOCABULARY))


@recipe(muse_glimmer)
def muse_glimmer_30b() -> Recipe:
    """Muse Glimmer 30B, text only: 52 layers, three of four with a window; for 64 chips of TPU7x, two devices each."""
    return published(muse_glimmer.muse_glimmer_30b_config(), lr=3e-4, devices=128, sequence_length=16384)
