"""The chips: one row each. Sources: Google Cloud's TPU documentation of each generation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp

from wholestep.graph.costs import Rates


@dataclass(frozen=True, kw_only=True)
class Chip:
    """What a chip can do.

    Attributes:
        name: as in topology names (`v6e:2x4`).
        kind: what its devices call themselves (`jax.Device.device_kind`).
        peak_flops: dense bf16 FLOP/s of a chip.
        hbm_bytes: memory of a chip.
        hbm_bytes_per_second: to and from that memory.
        devices: JAX devices on a chip.
    """

    name: str
    kind: str
    peak_flops: float
    hbm_bytes: int
    hbm_bytes_per_second: float
    devices: int


_GIB = 1024**3

CHIPS = tuple(
    Chip(name=name, kind=kind, peak_flops=flops, hbm_bytes=gib * _GIB, hbm_bytes_per_second=rate, devices=devices)
    for name, kind, flops, gib, rate, devices in (
        ("v5e", "TPU v5 lite", 197e12, 16, 819e9, 1),
        ("v5p", "TPU v5", 459e12, 95, 2765e9, 1),
        ("v6e", "TPU v6 lite", 918e12, 32, 1640e9, 1),
        ("tpu7x", "TPU7x", 2307e12, 192, 7380e9, 2),
    )
)

# Of a chip, each way. Google publishes none: this is what 16 lanes of PCIe 4.0 carry, an assumption.
HOST_BYTES_PER_SECOND = 32e9


def chip_lowered_for() -> Chip | None:
    """The chip of the program that is being traced; None where it is for a CPU, or known to no mesh.

    Inside `jax.shard_map`, whose mesh says what its devices are."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return next((chip for chip in CHIPS if device is not None and chip.kind == device.device_kind), None)


def rates_of(mesh: jax.sharding.Mesh) -> Rates:
    """What a device of `mesh` can do at best. A CPU's own memory is its host's, so that nothing is gained by moving
    data there; its other figures are of the order of a core's, since only what is cheaper than what counts."""
    kind = mesh.devices.flat[0].device_kind
    for chip in CHIPS:
        if chip.kind == kind:
            rates = (chip.peak_flops, chip.hbm_bytes_per_second, HOST_BYTES_PER_SECOND)
            return Rates(*(rate / chip.devices for rate in rates))
    return Rates(flops_per_second=1e11, hbm_bytes_per_second=1e10, host_bytes_per_second=0)


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
