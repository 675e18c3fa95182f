"""Muse Glimmer 30B on TPU7x."""

from __future__ import annotations

from wholestep.models import muse_glimmer
from wholestep.pipeline import Recipe
from wholestep.recipes.common import tuned
from wholestep.recipes.muse_glimmer import muse_glimmer_30b
from wholestep.recipes.registry import recipe
from wholestep.recipes.tpu7x.flags import DENSE


@recipe(muse_glimmer, topology="tpu7x:4x4x4")
def muse_glimmer_30b_tpu7x_64() -> Recipe:
    """Muse Glimmer 30B, text only, on 64 chips of TPU7x: a row of 16,384 tokens on each device."""
    return tuned(muse_glimmer_30b(), devices=128, rows=1, keep="recompute_all", flags=DENSE)


@recipe(muse_glimmer, topology="tpu7x:4x4x8")
def muse_glimmer_30b_tpu7x_128() -> Recipe:
    """Muse Glimmer 30B, text only, on 128 chips of TPU7x: a row of 16,384 tokens on each device."""
    return tuned(muse_glimmer_30b(), devices=256, rows=1, keep="recompute_all", flags=DENSE)
