"""Which tiles of rows hold which expert's rows: the work list of the grouped matmuls.

R rows, sorted by expert; E experts; V visits.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


class GroupVisits(NamedTuple):
    """Visits of tiles of rows, in the order of rows: int32 arrays [V]. Visits of one tile follow one another, and so do
    those of one expert.

    Attributes:
        expert: the expert whose rows are visited.
        tile: the tile that they lie in.
        read: the same, but no tile past the experts' rows: those are not worth reading.
        start: the first of them, counted from the tile's first row.
        end: the row after the last, counted so too. A visit of no rows has 0 and 0.
    """

    expert: jax.Array
    tile: jax.Array
    read: jax.Array
    start: jax.Array
    end: jax.Array


def group_visits(group_sizes_E: jax.Array, rows: int, tile: int, *, every: Literal["tile", "expert"]) -> GroupVisits:
    """The visits of `rows` rows in tiles of `tile`.

    A tile of several experts is visited once for each, an expert of several tiles once in each. There are always
    ceil(R / tile) + E of them, which is the most that any sizes need, so that sizes are data and never recompile a
    program: those not needed come last and repeat the last one's expert and tile with no rows.

    Args:
        group_sizes_E: int32, how many rows each expert has. What their sum has past R is ignored.
        rows: R, at least 1.
        tile: rows of a tile.
        every: what is visited at least once, if with no rows: each "tile", also past the last expert's rows, or each
            "expert", also one that has no rows.
    """
    tiles, experts = pl.cdiv(rows, tile), group_sizes_E.shape[0]
    end_G = jnp.minimum(jnp.cumsum(group_sizes_E.astype(jnp.int32)), rows)
    last_read = jnp.maximum(end_G[-1] - 1, 0) // tile
    if every == "tile":  # the rows past the experts' make a group of their own
        end_G = jnp.append(end_G, jnp.int32(rows))
    start_G = jnp.concatenate([jnp.zeros(1, jnp.int32), end_G[:-1]])
    first_tile_G = jnp.minimum(start_G // tile, tiles - 1)
    visits_G = jnp.where(end_G > start_G, pl.cdiv(end_G, tile) - first_tile_G, int(every == "expert"))
    last_visit_G = jnp.cumsum(visits_G)

    visit_V = jnp.arange(tiles + experts, dtype=jnp.int32)
    needed_V = visit_V < last_visit_G[-1]
    visit_V = jnp.minimum(visit_V, last_visit_G[-1] - 1)
    group_V = jnp.searchsorted(last_visit_G, visit_V, side="right", method="compare_all").astype(jnp.int32)
    tile_V = first_tile_G[group_V] + visit_V - (last_visit_G - visits_G)[group_V]
    start_V = jnp.maximum(start_G[group_V] - tile_V * tile, 0)
    end_V = jnp.minimum(end_G[group_V] - tile_V * tile, tile)
    filled_V = needed_V & (group_V < experts) & (start_V < end_V)
    return GroupVisits(
        expert=jnp.minimum(group_V, experts - 1),
        tile=tile_V,
        read=jnp.minimum(tile_V, last_read),
        start=jnp.where(filled_V, start_V, 0),
        end=jnp.where(filled_V, end_V, 0),
    )
