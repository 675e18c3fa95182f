"""Llama 3 on TPU7x.

The backward pass finds attention's result and what enters it kept where there is room, which saves computing both
again; 405B keeps the layers' inputs alone, at one row a device.
"""

from __future__ import annotations

from wholestep.models import llama3
from wholestep.pipeline import Recipe
from wholestep.recipes.common import SAVE_HEADS, tuned
from wholestep.recipes.llama3 import llama3_8b, llama3_70b, llama3_405b
from wholestep.recipes.registry import recipe
from wholestep.recipes.tpu7x.flags import DENSE


@recipe(llama3, topology="tpu7x:2x2x1")
def llama3_8b_tpu7x_4() -> Recipe:
    """Llama 3.1 8B on 4 chips of TPU7x: 4 rows of 8,192 tokens on each device."""
    return tuned(llama3_8b(), devices=8, rows=4, keep="save_attention", rules=SAVE_HEADS, flags=DENSE)


@recipe(llama3, topology="tpu7x:4x4x4")
def llama3_70b_tpu7x_64() -> Recipe:
    """Llama 3.1 70B on 64 chips of TPU7x: 2 rows of 8,192 tokens on each device."""
    return tuned(llama3_70b(), devices=128, rows=2, keep="save_attention", rules=SAVE_HEADS, flags=DENSE)


@recipe(llama3, topology="tpu7x:4x4x8")
def llama3_405b_tpu7x_128() -> Recipe:
    """Llama 3.1 405B on 128 chips of TPU7x: a row of 8,192 tokens on each device."""
    return tuned(llama3_405b(), devices=256, rows=1, keep="recompute_all", flags=DENSE)


@recipe(llama3, topology="tpu7x:8x8x16")
def llama3_405b_tpu7x_1024() -> Recipe:
    """Llama 3.1 405B on 1,024 chips of TPU7x: a row of 8,192 tokens on each device."""
    return tuned(llama3_405b(), devices=2048, rows=1, keep="recompute_all", flags=DENSE)
