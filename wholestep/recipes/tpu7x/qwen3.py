"""Qwen3's dense models on TPU7x. The backward pass finds attention's result and what enters it kept."""

from __future__ import annotations

from wholestep.models import qwen3
from wholestep.pipeline import Recipe
from wholestep.recipes.common import SAVE_HEADS, tuned
from wholestep.recipes.qwen3 import qwen3_8b, qwen3_32b
from wholestep.recipes.registry import recipe
from wholestep.recipes.tpu7x.flags import DENSE


@recipe(qwen3, topology="tpu7x:2x2x1")
def qwen3_8b_tpu7x_4() -> Recipe:
    """Qwen3 8B on 4 chips of TPU7x: 4 rows of 8,192 tokens on each device."""
    return tuned(qwen3_8b(), devices=8, rows=4, keep="save_attention", rules=SAVE_HEADS, flags=DENSE)


@recipe(qwen3, topology="tpu7x:4x4x4")
def qwen3_32b_tpu7x_64() -> Recipe:
    """Qwen3 32B on 64 chips of TPU7x: 2 rows of 8,192 tokens on each device."""
    return tuned(qwen3_32b(), devices=128, rows=2, keep="save_attention", rules=SAVE_HEADS, flags=DENSE)
