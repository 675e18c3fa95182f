"""Qwen3's dense models on v6e: as many rows as fit where the backward pass finds the layers' inputs alone."""

from __future__ import annotations

from wholestep.models import qwen3
from wholestep.pipeline import Recipe
from wholestep.recipes.common import tuned
from wholestep.recipes.qwen3 import qwen3_8b, qwen3_32b
from wholestep.recipes.registry import recipe
from wholestep.recipes.v6e.flags import DENSE


@recipe(qwen3, topology="v6e:2x4")
def qwen3_8b_v6e_8() -> Recipe:
    """Qwen3 8B on 8 chips of v6e: 2 rows of 8,192 tokens on each."""
    return tuned(qwen3_8b(), devices=8, rows=2, keep="recompute_all", flags=DENSE)


@recipe(qwen3, topology="v6e:8x8")
def qwen3_32b_v6e_64() -> Recipe:
    """Qwen3 32B on 64 chips of v6e: 2 rows of 8,192 tokens on each."""
    return tuned(qwen3_32b(), devices=64, rows=2, keep="recompute_all", flags=DENSE)
