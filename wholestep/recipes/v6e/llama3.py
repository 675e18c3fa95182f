"""Llama 3 on v6e: as many rows as fit where the backward pass finds the layers' inputs alone, and no host memory."""

from __future__ import annotations

from wholestep.models import llama3
from wholestep.pipeline import Recipe
from wholestep.recipes.common import tuned
from wholestep.recipes.llama3 import llama3_8b, llama3_70b
from wholestep.recipes.registry import recipe
from wholestep.recipes.v6e.flags import DENSE


@recipe(llama3, topology="v6e:2x4")
def llama3_8b_v6e_8() -> Recipe:
    """Llama 3.1 8B on 8 chips of v6e: 3 rows of 8,192 tokens on each."""
    return tuned(llama3_8b(), devices=8, rows=3, keep="recompute_all", flags=DENSE)


@recipe(llama3, topology="v6e:8x16")
def llama3_70b_v6e_128() -> Recipe:
    """Llama 3.1 70B on 128 chips of v6e: a row of 8,192 tokens on each."""
    return tuned(llama3_70b(), devices=128, rows=1, keep="recompute_all", flags=DENSE)
