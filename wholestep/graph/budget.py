"""The policy that is given a number of bytes: of all choices that fit, the one that costs the least time.

What recomputing a value costs depends on what else is kept, so all fates are chosen at once, by an integer program. It
is that of Checkmate (Jain et al., 2020), for a backward pass that computes a value again once or never. But for the
limit it would be a minimum cut, so the solver has little to search: a layer takes it well under a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array
from torch import fx

from wholestep.errors import GraphError
from wholestep.graph.costs import Rates, seconds, seconds_to_keep, size
from wholestep.graph.fates import Fate
from wholestep.graph.intermediates import Intermediates, find_recomputed

# Of choices that take the same time the smaller is wanted: a byte kept counts as this part of the time to read it.
_TIE = 1e-3


@dataclass(frozen=True)
class Budget:
    """What may be saved on the device.

    Attributes:
        limit: bytes.
        rates: of the device, which decide what is worth them.
    """

    limit: int
    rates: Rates


def plan(between: Intermediates, budget: Budget) -> dict[fx.Node, Fate]:
    """The fates of inputs and candidates that take the least time, by `cost`.

    Args:
        between: what there is to choose from.
        budget: of one layer (of one run of a loop's body). Inputs count, unless they are offloaded.

    Raises:
        GraphError: the inputs do not fit and cannot be offloaded; the text says how many bytes they need.
    """
    limit, rates = budget.limit, budget.rates
    forced = 0 if rates.host_bytes_per_second else sum(map(size, between.inputs))
    if limit < forced:
        raise GraphError(f"a budget of {limit} bytes for a layer does not hold its inputs, which need {forced}")
    return _without_needless(between, _solve(between, limit - forced, rates), rates)


def saved_bytes(fates: Mapping[fx.Node, Fate]) -> int:
    """What is kept on the device."""
    return sum(size(node) for node, fate in fates.items() if fate is Fate.SAVE)


def cost(between: Intermediates, fates: Mapping[fx.Node, Fate], rates: Rates) -> float:
    """Seconds that a choice adds to a layer's forward and backward pass: for what is computed again, for what is kept
    and would otherwise not be written, and for transfers to the host and back, as if nothing hid them."""
    kept = _kept(fates)
    _, recomputed = find_recomputed(between.wanted, kept)
    times = [seconds(node, rates) for node in recomputed]
    times += [_seconds_to_keep(node, fates[node], rates) for node in kept]
    return math.fsum(times)  # whatever the order of the sets, or processes might choose differently


def _kept(fates: Mapping[fx.Node, Fate]) -> set[fx.Node]:
    return {node for node, fate in fates.items() if fate is not Fate.RECOMPUTE}


def _seconds_to_keep(node: fx.Node, fate: Fate, rates: Rates) -> float:
    transfers = 2 * size(node) / rates.host_bytes_per_second if fate is Fate.OFFLOAD else 0.0
    return seconds_to_keep(node, rates) + transfers


def _solve(between: Intermediates, room: int, rates: Rates) -> dict[fx.Node, Fate]:
    """The integer program, with `room` bytes for everything that need not be saved."""
    again = sorted(find_recomputed(between.wanted, frozenset(between.inputs))[1])
    keepable = (*between.inputs, *between.candidates)
    offloadable = keepable if rates.host_bytes_per_second else ()
    # The variables, 0 or 1: has this node this fate?
    costs: dict[tuple[fx.Node, Fate], float] = {(node, Fate.RECOMPUTE): seconds(node, rates) for node in again}
    for fate, nodes in ((Fate.SAVE, keepable), (Fate.OFFLOAD, offloadable)):
        for node in nodes:
            tie = _TIE * size(node) / rates.hbm_bytes_per_second
            costs[node, fate] = _seconds_to_keep(node, fate, rates) + tie
    column = {choice: i for i, choice in enumerate(costs)}
    ways: dict[fx.Node, list[int]] = {}
    for (node, _), i in column.items():
        ways.setdefault(node, []).append(i)

    rows: list[tuple[dict[int, float], float]] = []  # a sum over variables, and what it is at least
    for node in (*between.inputs, *between.wanted):
        if node in ways:
            rows.append((dict.fromkeys(ways[node], 1.0), 1.0))
    for node in again:
        for source in node.all_input_nodes:
            if source in ways:
                rows.append(({**dict.fromkeys(ways[source], 1.0), column[node, Fate.RECOMPUTE]: -1.0}, 0.0))
    limited = keepable if offloadable else between.candidates
    rows.append(({column[node, Fate.SAVE]: -float(size(node)) for node in limited}, -float(room)))

    answer = milp(
        np.array(list(costs.values())) / (max(costs.values()) or 1.0),
        constraints=LinearConstraint(_matrix([row for row, _ in rows], len(column)), [least for _, least in rows]),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(column)),
        options={"mip_rel_gap": 0.0},
    )
    assert answer.success, answer.message
    chosen = {choice for choice, i in column.items() if answer.x[i] > 0.5}
    return {
        node: next((fate for fate in (Fate.SAVE, Fate.OFFLOAD) if (node, fate) in chosen), Fate.RECOMPUTE)
        for node in keepable
    }


def _matrix(rows: Sequence[Mapping[int, float]], width: int) -> csr_array:
    """Rows, given by column, as a sparse matrix."""
    values = [value for row in rows for value in row.values()]
    columns = [i for row in rows for i in row]
    return csr_array((values, columns, np.cumsum([0, *map(len, rows)])), shape=(len(rows), width))


def _without_needless(between: Intermediates, fates: Mapping[fx.Node, Fate], rates: Rates) -> dict[fx.Node, Fate]:
    """The same without those small values whose benefit is below the solver's tolerance."""
    slim = dict(fates)
    for node in between.candidates:
        if slim[node] is not Fate.RECOMPUTE:
            without = {**slim, node: Fate.RECOMPUTE}
            if cost(between, without, rates) <= cost(between, slim, rates):
                slim = without
    return slim
