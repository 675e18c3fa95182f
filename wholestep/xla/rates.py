"""How fast a mesh's devices are at best: for the cost of keeping a value, and for utilization."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp

from wholestep.graph.costs import Rates
from wholestep.xla.chips import chip_of

# Of a chip, each way. Google publishes none: this is what 16 lanes of PCIe 4.0 carry, an assumption.
HOST_BYTES_PER_SECOND = 32e9


def rates_of(mesh: jax.sharding.Mesh) -> Rates:
    """What a device of `mesh` can do at best. A CPU's own memory is its host's, so that nothing is gained by moving
    data there; its other figures are of the order of a core's, since only what is cheaper than what counts."""
    chip = chip_of(mesh)
    if chip is None:
        return Rates(flops_per_second=1e11, hbm_bytes_per_second=1e10, host_bytes_per_second=0)
    rates = (chip.peak_flops, chip.hbm_bytes_per_second, HOST_BYTES_PER_SECOND)
    return Rates(*(rate / chip.devices for rate in rates))


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
    if mesh.devices.flat[0].platform == "cpu":
        return Peak(_measured_cpu_peak(), "measured: one fp32 matmul on all cores")
    chip = chip_of(mesh)
    return None if chip is None else Peak(chip.peak_flops / chip.devices * mesh.size, f"{chip.name}, dense bf16")


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
