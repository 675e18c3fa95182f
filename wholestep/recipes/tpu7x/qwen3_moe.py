"""Qwen3 235B-A22B on TPU7x: 16 rows of 4,096 tokens on each device.

So many rows make the time of gathering all experts' weights small beside work. Layers' inputs are 47 GiB then; on 64
chips, where parameters and optimizer take 20 GiB of a device, they go to the host's memory.
"""

from __future__ import annotations

from wholestep.models import qwen3_moe
from wholestep.pipeline import Recipe
from wholestep.recipes.common import tuned
from wholestep.recipes.qwen3_moe import qwen3_235b_a22b
from wholestep.recipes.registry import recipe
from wholestep.recipes.tpu7x.flags import MIXTURE


@recipe(qwen3_moe, topology="tpu7x:4x4x4")
def qwen3_235b_a22b_tpu7x_64() -> Recipe:
    """Qwen3 235B-A22B on 64 chips of TPU7x."""
    return _on(devices=128, keep="offload_layer_inputs")


@recipe(qwen3_moe, topology="tpu7x:8x8x4")
def qwen3_235b_a22b_tpu7x_256() -> Recipe:
    """Qwen3 235B-A22B on 256 chips of TPU7x."""
    return _on(devices=512)


@recipe(qwen3_moe, topology="tpu7x:8x8x16")
def qwen3_235b_a22b_tpu7x_1024() -> Recipe:
    """Qwen3 235B-A22B on 1,024 chips of TPU7x, one slice."""
    return _on(devices=2048)


@recipe(qwen3_moe, topology="tpu7x:8x8x16", slices=8)
def qwen3_235b_a22b_tpu7x_8x1024() -> Recipe:
    """Qwen3 235B-A22B on 8 slices of 1,024 chips of TPU7x: sharded in a slice, a copy in each."""
    return _on(devices=16384, replicas=8)


def _on(devices: int, replicas: int = 1, keep: str = "recompute_all") -> Recipe:
    return tuned(qwen3_235b_a22b(), devices=devices, rows=16, replicas=replicas, keep=keep, flags=MIXTURE)
