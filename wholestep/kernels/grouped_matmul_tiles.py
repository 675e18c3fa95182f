"""Tiles of the grouped matmuls: the largest that fit a chip's fast memory (VMEM)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
from jax.experimental import pallas as pl

Tiling = tuple[int, int, int]

_MIB = 2**20
# Of a core's VMEM (v5e and v6e have 128 MiB, v5p and tpu7x 64), by `jax.Device.device_kind`, what a kernel may take. The
# rest is for what XLA keeps there meanwhile.
_VMEM_BYTES = {"TPU v5 lite": 64 * _MIB, "TPU v5": 40 * _MIB, "TPU v6 lite": 64 * _MIB, "TPU7x": 40 * _MIB}
_LEAST_VMEM_BYTES = 16 * _MIB  # what XLA lets a kernel have that asks for nothing

_LANES = 128


def vmem_bytes() -> int:
    """What a kernel may take of the VMEM of the device that is traced for: of the mesh of the `shard_map` around, else
    the default device."""
    device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
    return _VMEM_BYTES.get(device.device_kind, _LEAST_VMEM_BYTES)


def row_tiles(
    rows: int, contraction: int, width: int, *, lhs: int, rhs: int, outputs: int, itemsize: int, vmem: int
) -> Tiling:
    """Rows, contraction and output width of the tiles of `grouped_matmul` and its input gradient.

    Args:
        rows: R.
        contraction: width that is summed over.
        width: of each output.
        lhs: how many arrays [R, contraction] are read.
        rhs: how many of [E, contraction, width].
        outputs: how many of [R, width] are written.
        itemsize: bytes of an element of them.
        vmem: bytes of VMEM that the kernel may take.
    """

    def taken(r: int, c: int, w: int) -> int:
        blocks = lhs * r * c + rhs * c * w + outputs * r * w
        return 2 * blocks * itemsize + (1 + outputs) * r * w * 4

    def moved(r: int, c: int, w: int) -> int:
        # An expert's weights stay while its rows pass, if not contracted in parts: then they come anew for each tile.
        weights = rhs * contraction * width * (pl.cdiv(rows, r) if c < contraction else 1)
        return weights + lhs * rows * contraction * pl.cdiv(width, w)

    return _best(_row_counts(rows, 512), _parts(contraction), _parts(width), taken, moved, vmem)


def weight_tiles(rows: int, lhs_width: int, grad_width: int, experts: int, *, grads: int, itemsize: int, vmem: int) -> Tiling:
    """Rows, K and N of the tiles of the weight gradient."""

    def taken(r: int, k: int, n: int) -> int:
        blocks = r * k + grads * (r * n + k * n)
        return 2 * blocks * itemsize + (1 + grads) * k * n * 4 + (r * k + r * n) * itemsize

    def moved(r: int, k: int, n: int) -> int:
        return rows * (lhs_width * pl.cdiv(grad_width, n) + grads * grad_width * pl.cdiv(lhs_width, k))

    most = 512 if rows >= 2048 * experts else 256
    return _best(_row_counts(rows, most), _parts(lhs_width), _parts(grad_width), taken, moved, vmem)


def _row_counts(rows: int, most: int) -> list[int]:
    return [count for count in (512, 256, 128) if count <= most]


def _parts(width: int) -> list[int]:
    """The whole width, and equal parts of it that are whole lanes."""
    return [width, *sorted({pl.cdiv(pl.cdiv(width, n), _LANES) * _LANES for n in range(2, pl.cdiv(width, _LANES) + 1)}, reverse=True)]


def _best(rows, firsts, seconds, taken, moved, vmem: int) -> Tiling:
    """Of the tiles that fit, one that moves least, and of those with the most rows."""
    tilings = [(r, k, n) for r in rows for k in firsts for n in seconds if taken(r, k, n) <= vmem]
    return min(tilings, key=lambda tiling: moved(*tiling))
