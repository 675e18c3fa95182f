"""Tiles of the grouped matmuls: of those that fit a chip's fast memory (VMEM), the ones that read least.

R rows, K contraction width, N output width, E experts; where products of either orientation are meant, C is the width
that is contracted and W that of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from jax.experimental import pallas as pl

Tiling = tuple[int, int, int]

VMEM_BYTES = 40 * 2**20
"""What a kernel asks for of a core's VMEM. The least that a chip of ours has is 64 MiB (v5p, tpu7x), and XLA needs some
for what it keeps there meanwhile."""

# Of that, for registers that the compiler puts aside, which it does not tell before: at most 4 MiB were seen.
_SPILLED_BYTES = 5 * 2**20

_LANES = 128
_MATRIX_UNIT = 256  # it multiplies by so many columns at a time (v5: half as many)


def row_tiles(R: int, C: int, W: int, *, lhs: int, rhs: int, outputs: int, itemsize: int) -> Tiling:
    """Rows, C and W of the tiles of `grouped_matmul` and its input gradient.

    Args:
        R, C, W: the widths.
        lhs: how many arrays [R, C] are read.
        rhs: how many [E, C, W] are read.
        outputs: how many [R, W] are written.
        itemsize: bytes of their elements.
    """

    def taken(r: int, c: int, w: int) -> int:
        sums = outputs * r * w if c < C else 0
        return 2 * itemsize * (lhs * r * c + rhs * c * w + outputs * r * w) + 4 * sums

    def read(r: int, c: int, w: int) -> int:
        # An expert's weights stay while its rows pass, unless they come in parts of the contraction: then each tile of
        # rows reads them anew.
        return lhs * R * C * pl.cdiv(W, w) + rhs * C * W * (pl.cdiv(R, r) if c < C else 1)

    return _best(product((512, 256), _parts(C), _parts(W)), taken, read)


def weight_tiles(R: int, K: int, N: int, E: int, *, grads: int, itemsize: int) -> Tiling:
    """Rows, K and N of the tiles of the weight gradient.

    Args:
        R, K, N, E: the widths.
        grads: how many arrays [R, N] are read.
        itemsize: bytes of their elements.
    """

    def taken(r: int, k: int, n: int) -> int:
        return 2 * itemsize * (r * k + grads * (r * n + k * n)) + 4 * grads * k * n

    def read(r: int, k: int, n: int) -> int:
        return R * (K * pl.cdiv(N, n) + grads * N * pl.cdiv(K, k))

    # A whole tile is multiplied for each expert that has rows in it: less is wasted where tiles are small.
    rows = (512, 256) if R >= 2048 * E else (256,)
    return _best(product(rows, _parts(K), _parts(N)), taken, read)


def _parts(width: int) -> list[int]:
    """The whole width, and about equal parts of it, from large to small."""
    counts = range(2, pl.cdiv(width, _MATRIX_UNIT) + 1)
    return [width, *sorted({_round_up(pl.cdiv(width, n), _MATRIX_UNIT) for n in counts}, reverse=True)]


def _best(tilings: Iterable[Tiling], taken: Callable[..., int], read: Callable[..., int]) -> Tiling:
    """The first of those that read least, of `tilings` that fit."""
    fitting = [
        (r, x, y)
        for r, x, y in tilings
        if taken(r, _round_up(x, _LANES), _round_up(y, _LANES)) + _SPILLED_BYTES <= VMEM_BYTES
    ]
    return min(fitting, key=lambda tiling: read(*tiling))


def _round_up(width: int, multiple: int) -> int:
    return pl.cdiv(width, multiple) * multiple
