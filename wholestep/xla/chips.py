"""The chips: one row each. Sources: Google Cloud's TPU documentation of each generation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp


@dataclass(frozen=True, kw_only=True)
class Chip:
    """What a chip can do.

    Attributes:
        name: as in topology names (`v6e:2x4`).
        kind: what its devices call themselves (`jax.Device.device_kind`).
        peak_flops: dense bf16 FLOP/s of a chip.
        hbm_bytes: memory of a chip.
        devices: JAX devices on a chip.
    """

    name: str
    kind: str
    peak_flops: float
    hbm_bytes: int
    devices: int


_GIB = 1024**3

CHIPS = (
    Chip(name="v5e", kind="TPU v5 lite", peak_flops=197e12, hbm_bytes=16 * _GIB, devices=1),
    Chip(name="v5p", kind="TPU v5", peak_flops=459e12, hbm_bytes=95 * _GIB, devices=1),
    Chip(name="v6e", kind="TPU v6 lite", peak_flops=918e12, hbm_bytes=32 * _GIB, devices=1),
    Chip(name="tpu7x", kind="TPU7x", peak_flops=2307e12, hbm_bytes=192 * _GIB, devices=2),
)


@dataclass(frozen=True)
class Peak:
    """The FLOP/s that utilization is measured against, for all devices of a mesh together, and where it is from."""

    flops: float
    source: str


def peak_of(mesh: jax.sharding.Mesh) -> Peak | None:
    """The peak of the devices of `mesh`; None for a kind of device that has no row.

    The virtual devices of a CPU share its cores, so the peak of all of them is what one large fp32 matmul reaches,
    measured once in a process.
    """
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        return Peak(_measured_cpu_peak(), "measured: one fp32 matmul on all cores")
    for chip in CHIPS:
        if chip.kind == device.device_kind:
            return Peak(chip.peak_flops / chip.devices * mesh.size, f"{chip.name}, dense bf16")
    return None


@cache
def _measured_cpu_peak() -> float:
    size = 2048
    x = jnp.ones((size, size), jnp.float32)
    matmul = jax.jit(lambda a, b: a @ b)
    matmul(x, x).block_until_ready()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        matmul(x, x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)
