"""The chips: one row each.

Figures are of a whole chip and published ones, each row naming the document; None is what no document says. Two are
derived: the rate of a link, of the published aggregate of all links in both directions, and the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is published of a chip, also of one that cannot be compiled for yet.

    Attributes:
        name: as in topology names (`v6e:2x4`).
        peak_flops: dense bf16 FLOP/s.
        peak_fp8_flops: dense fp8 FLOP/s; None where the chip has no fp8.
        hbm_bytes: memory. (What documents call GB is GiB: stacks come in powers of two.)
        hbm_bytes_per_second: to and from that memory.
        ici_links: links to neighbouring chips.
        ici_bytes_per_second: of one link, one way.
        torus_dimensions: of the links; None where they form no torus.
        pod_chips: the most chips that are connected by links.
        dcn_bytes_per_second: to other pods, through the data center's network.
        sparse_cores: cores for gathers and scatters; collectives can run on them beside the matrix units.
        source: the documents' titles.
    """

    name: str
    peak_flops: float | None
    peak_fp8_flops: float | None
    hbm_bytes: int
    hbm_bytes_per_second: float
    ici_links: int | None
    ici_bytes_per_second: float | None
    torus_dimensions: int | None
    pod_chips: int
    dcn_bytes_per_second: float | None
    sparse_cores: int | None
    source: str


@dataclass(frozen=True, kw_only=True)
class Chip(Figures):
    """A chip that libtpu compiles for.

    Attributes:
        kind: what its devices call themselves (`jax.Device.device_kind`).
        devices: JAX devices on a chip.
        layout: libtpu's name of the chip's configuration in which it has these devices.
        clock_hz: of the TensorCore, at least and at most. An inference, published for v4 only: the peak over what the
            matrix units do in a cycle, as the compiler counts it.
        topologies: some that libtpu knows, the largest last.
    """

    peak_flops: float
    ici_links: int
    ici_bytes_per_second: float
    torus_dimensions: int
    kind: str
    devices: int = 1
    layout: str = "default"
    clock_hz: tuple[float, float]
    topologies: tuple[str, ...]


_GIB = 1024**3
_GBIT = 1e9 / 8  # DCN is published in Gbit/s

CHIPS = (
    Chip(
        name="v4",
        kind="TPU v4",
        layout="megacore",  # in libtpu's default each TensorCore is a device, on Cloud TPU a chip is
        peak_flops=275e12,
        peak_fp8_flops=None,
        hbm_bytes=32 * _GIB,
        hbm_bytes_per_second=1200e9,
        ici_links=6,
        ici_bytes_per_second=50e9,
        torus_dimensions=3,
        pod_chips=4096,
        dcn_bytes_per_second=None,
        sparse_cores=None,
        clock_hz=(1.05e9, 1.05e9),
        topologies=("v4:2x2x1", "v4:2x2x2", "v4:4x4x4", "v4:8x8x8"),
        source="Google Cloud, 'TPU v4'; links and clock: Jouppi et al. 2023, 'TPU v4: An Optically Reconfigurable "
        "Supercomputer for Machine Learning with Hardware Support for Embeddings'",
    ),
    Chip(
        name="v5e",
        kind="TPU v5 lite",
        peak_flops=197e12,
        peak_fp8_flops=None,
        hbm_bytes=16 * _GIB,
        hbm_bytes_per_second=819e9,
        ici_links=4,
        ici_bytes_per_second=400e9 / 2 / 4,
        torus_dimensions=2,
        pod_chips=256,
        dcn_bytes_per_second=6400 * _GBIT / 256,
        sparse_cores=0,
        clock_hz=(1.5e9, 1.5e9),
        topologies=("v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:8x8", "v5e:16x16"),
        source="Google Cloud, 'TPU v5e' (DCN: that of a pod, shared out)",
    ),
    Chip(
        name="v5p",
        kind="TPU v5",
        peak_flops=459e12,
        peak_fp8_flops=459e12,
        hbm_bytes=95 * _GIB,
        hbm_bytes_per_second=2765e9,
        ici_links=6,
        ici_bytes_per_second=1200e9 / 2 / 6,
        torus_dimensions=3,
        pod_chips=8960,
        dcn_bytes_per_second=50 * _GBIT,
        sparse_cores=4,
        clock_hz=(1.75e9, 1.75e9),
        topologies=("v5p:2x2x1", "v5p:2x2x2", "v5p:4x4x4", "v5p:8x8x8", "v5p:16x16x24"),
        source="Google Cloud, 'TPU v5p'",
    ),
    Chip(
        name="v6e",
        kind="TPU v6 lite",
        peak_flops=918e12,
        peak_fp8_flops=918e12,
        hbm_bytes=32 * _GIB,
        hbm_bytes_per_second=1640e9,
        ici_links=4,
        ici_bytes_per_second=800e9 / 2 / 4,
        torus_dimensions=2,
        pod_chips=256,
        dcn_bytes_per_second=100 * _GBIT,
        sparse_cores=2,
        clock_hz=(1.75e9, 1.75e9),
        topologies=("v6e:2x2", "v6e:2x4", "v6e:4x4", "v6e:8x8", "v6e:16x16"),
        source="Google Cloud, 'TPU v6e'; fp8, DCN and SparseCores: its column in 'TPU7x (Ironwood)'",
    ),
    Chip(
        name="tpu7x",
        kind="TPU7x",
        devices=2,
        peak_flops=2307e12,
        peak_fp8_flops=4614e12,
        hbm_bytes=192 * _GIB,
        hbm_bytes_per_second=7380e9,
        ici_links=6,
        ici_bytes_per_second=1200e9 / 2 / 6,
        torus_dimensions=3,
        pod_chips=9216,
        dcn_bytes_per_second=100 * _GBIT,
        sparse_cores=4,
        clock_hz=(1.9e9, 2.2e9),  # the published peak and the compiler's cycles do not agree
        topologies=("tpu7x:2x2x1", "tpu7x:2x2x2", "tpu7x:4x4x4", "tpu7x:8x8x8", "tpu7x:8x8x16"),
        source="Google Cloud, 'TPU7x (Ironwood)'",
    ),
)

ANNOUNCED = (
    Figures(
        name="tpu8t",
        peak_flops=None,
        peak_fp8_flops=None,
        hbm_bytes=216 * _GIB,
        hbm_bytes_per_second=6528e9,
        ici_links=None,
        ici_bytes_per_second=None,
        torus_dimensions=3,
        pod_chips=9600,
        dcn_bytes_per_second=None,
        sparse_cores=None,
        source="for training, 12.6 PFLOP/s in fp4: Google Cloud, April 2026, 'TPU 8t and TPU 8i technical deep dive', "
        "as the press reports it",
    ),
    Figures(
        name="tpu8i",
        peak_flops=1101e12,
        peak_fp8_flops=8808e12,
        hbm_bytes=288 * _GIB,
        hbm_bytes_per_second=8601e9,
        ici_links=None,
        ici_bytes_per_second=None,
        torus_dimensions=None,
        pod_chips=1152,
        dcn_bytes_per_second=None,
        sparse_cores=None,
        source="for inference, 10.1 PFLOP/s in fp4: Google Cloud, April 2026, 'TPU 8t and TPU 8i technical deep dive', "
        "as the press reports it; bf16 and fp8: JAX 0.10.2, jax/_src/pallas/mosaic/tpu_info.py",
    ),
)
"""Chips that Google has announced and that libtpu does not compile for."""


def chip_of(mesh: jax.sharding.Mesh) -> Chip | None:
    """The chip of the devices of `mesh`; None for a CPU, and for a kind of device that has no row."""
    return _of_kind(mesh.devices.flat[0].device_kind)


def chip_lowered_for() -> Chip | None:
    """The chip of the program that is being traced; None where it is for a CPU, or known to no mesh.

    Inside `jax.shard_map`, whose mesh says what its devices are."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return None if device is None else _of_kind(device.device_kind)


def _of_kind(kind: str) -> Chip | None:
    return next((chip for chip in CHIPS if chip.kind == kind), None)
