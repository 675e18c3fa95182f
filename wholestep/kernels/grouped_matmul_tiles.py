"""Tiles of the grouped matmuls: of those that fit a chip's fast memory (VMEM), the ones that read least.

R rows, K contraction width, N output width, E experts; where products of either orientation are meant, C is the width
that is contracted and W that of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import jax
from jax.experimental import pallas as pl

Tiling = tuple[int, int, int]

_MIB = 2**20
# By `jax.Device.device_kind`, what a kernel may take of a core's VMEM: v5e and v6e have 128 MiB, v5p and tpu7x 64. The
# rest is for what XLA keeps there meanwhile.
_VMEM_BYTES = {"TPU v5 lite": 64 * _MIB, "TPU v5": 40 * _MIB, "TPU v6 lite": 64 * _MIB, "TPU7x": 40 * _MIB}
_DEFAULT_VMEM_BYTES = 16 * _MIB  # what a kernel has at least that asks for nothing
_SPILLED_BYTES = 2 * _MIB  # registers that the compiler puts aside; an upper bound of what was seen

_LANES = 128
_MATRIX_UNIT = 256  # it multiplies by so many columns at a time (v5: half as many)


def vmem_bytes() -> int:
    """What a kernel may take of the VMEM of the device that is traced for: one of the mesh of the `shard_map` around,
    else the default device."""
    device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
    return _VMEM_BYTES.get(device.device_kind, _DEFAULT_VMEM_BYTES)


def row_tiles(R: int, C: int, W: int, *, lhs: int, rhs: int, outputs: int, itemsize: int, vmem: int) -> Tiling:
    """Rows, C and W of the tiles of `grouped_matmul` and its input gradient.

    Args:
        R, C, W: the widths.
        lhs: how many arrays [R, C] are read.
        rhs: how many [E, C, W] are read.
        outputs: how many [R, W] are written.
        itemsize: bytes of their elements.
        vmem: bytes of VMEM that there are.
    """

    def taken(r: int, c: int, w: int) -> int:
        sums = outputs * r * w if c < C else 0
        return 2 * itemsize * (lhs * r * c + rhs * c * w + outputs * r * w) + 4 * sums

    def read(r: int, c: int, w: int) -> int:
        # An expert's weights stay while its rows pass, unless they come in parts of the contraction: then each tile of
        # rows reads them anew.
        return lhs * R * C * pl.cdiv(W, w) + rhs * C * W * (pl.cdiv(R, r) if c < C else 1)

    return _best(product((512, 256), _parts(C), _parts(W)), taken, read, vmem)


def weight_tiles(R: int, K: int, N: int, E: int, *, grads: int, itemsize: int, vmem: int) -> Tiling:
    """Rows, K and N of the tiles of the weight gradient.

    Args:
        R, K, N, E: the widths.
        grads: how many arrays [R, N] are read.
        itemsize: bytes of their elements.
        vmem: bytes of VMEM that there are.
    """

    def taken(r: int, k: int, n: int) -> int:
        return 2 * itemsize * (r * k + grads * (r * n + k * n)) + 4 * grads * k * n

    def read(r: int, k: int, n: int) -> int:
        return R * (K * pl.cdiv(N, n) + grads * N * pl.cdiv(K, k))

    # A whole tile is multiplied for each expert that has rows in it: less is wasted where tiles are small.
    rows = (512, 256) if R >= 2048 * E else (256,)
    return _best(product(rows, _parts(K), _parts(N)), taken, read, vmem)


def _parts(width: int) -> list[int]:
    """The whole width, and about equal parts of it, from large to small."""
    counts = range(2, pl.cdiv(width, _MATRIX_UNIT) + 1)
    return [width, *sorted({_round_up(pl.cdiv(width, n), _MATRIX_UNIT) for n in counts}, reverse=True)]


def _best(tilings, taken: Callable[..., int], read: Callable[..., int], vmem: int) -> Tiling:
    """The first of those that read least, of `tilings` that fit."""
    fitting = [
        (r, *widths)
        for r, *widths in tilings
        if taken(r, *(_round_up(width, _LANES) for width in widths)) + _SPILLED_BYTES <= vmem
    ]
    return min(fitting, key=lambda tiling: read(*tiling))


def _round_up(width: int, multiple: int) -> int:
    return pl.cdiv(width, multiple) * multiple
