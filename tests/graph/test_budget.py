"""Choices with a budget, against every choice there is."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from graph.small_joint import SMALL, between_halves, between_halves_of_llama
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from wholestep.errors import GraphError
from wholestep.graph.budget import Budget, cost, plan, saved_bytes
from wholestep.graph.costs import Rates, seconds, size
from wholestep.graph.fates import Fate
from wholestep.graph.intermediates import Intermediates, find_recomputed

ALONE = Rates(1e3, 1e3, 0)  # no host memory

small = cache(lambda name: between_halves(*SMALL[name]))
llama = cache(between_halves_of_llama)


def by_fate(fates: dict[fx.Node, Fate], fate: Fate) -> set[fx.Node]:
    return {node for node, its in fates.items() if its is fate}


def recomputed(between: Intermediates, fates: dict[fx.Node, Fate]) -> set[fx.Node]:
    return find_recomputed(between.wanted, set(fates) - by_fate(fates, Fate.RECOMPUTE))[1]


def inputs_size(between: Intermediates) -> int:
    return sum(map(size, between.inputs))


def everything(between: Intermediates) -> int:
    return inputs_size(between) + sum(map(size, between.candidates))


def every_choice(between: Intermediates, rates: Rates) -> list[tuple[int, float]]:
    """Bytes and cost of all ways to give each input and candidate a fate."""
    away = [Fate.OFFLOAD] if rates.host_bytes_per_second else []
    fates = [[Fate.SAVE, *away]] * len(between.inputs)
    fates += [[Fate.SAVE, Fate.RECOMPUTE, *away]] * len(between.candidates)
    nodes = (*between.inputs, *between.candidates)
    choices = (dict(zip(nodes, choice, strict=True)) for choice in itertools.product(*fates))
    return [(saved_bytes(choice), cost(between, choice, rates)) for choice in choices]


@pytest.mark.parametrize("name", SMALL)
def test_no_choice_that_fits_is_better(name: str) -> None:
    between = small(name)
    choices = every_choice(between, ALONE)
    limits = sorted({held for held, _ in choices})
    for limit in limits[:: len(limits) // 50 + 1]:
        fates = plan(between, Budget(limit, ALONE))
        assert saved_bytes(fates) <= limit
        best = min(seconds for held, seconds in choices if held <= limit)
        assert cost(between, fates, ALONE) <= best * (1 + 1e-3), limit


@pytest.mark.parametrize("host", [5.0, 50.0, 500.0])
def test_no_choice_that_fits_is_better_with_a_host(host: float) -> None:
    between, rates = small("attention"), Rates(1e3, 1e3, host)
    choices = every_choice(between, rates)
    for limit in range(0, everything(between), 256):
        fates = plan(between, Budget(limit, rates))
        assert saved_bytes(fates) <= limit
        best = min(seconds for held, seconds in choices if held <= limit)
        assert cost(between, fates, rates) <= best * (1 + 1e-3), limit


@settings(deadline=None, max_examples=30)
@given(
    # FLOPs a byte are 100 and more on any chip. Far below one, products cost so much that the solver, which weighs
    # costs to a millionth of the largest, does not see the rest.
    intensity=st.floats(0.1, 1e4),
    hbm=st.floats(1e6, 1e12),
    host=st.just(0.0) | st.floats(1e3, 1e12),
    share=st.floats(0, 1),
)
def test_a_layer_keeps_to_its_budget_and_more_never_costs_more(intensity, hbm, host, share) -> None:
    between, rates = llama(), Rates(intensity * hbm, hbm, host)
    least = inputs_size(between)
    limit = least + int(share * (everything(between) - least))
    fates, twice = (plan(between, Budget(room, rates)) for room in (limit, 2 * limit))
    assert set(fates) == {*between.inputs, *between.candidates}
    assert saved_bytes(fates) <= limit
    assert cost(between, twice, rates) <= cost(between, fates, rates) * (1 + 1e-3)


def test_more_budget_means_less_recomputation() -> None:
    between, rates = llama(), Rates(1e9, 1e9, 0)
    least, most = inputs_size(between), everything(between)
    spent = [
        sum(seconds(node, rates) for node in recomputed(between, plan(between, Budget(limit, rates))))
        for limit in range(least, most, (most - least) // 20)
    ]
    assert spent == sorted(spent, reverse=True) and spent[-1] < spent[0] / 2


def test_with_no_room_only_inputs_are_kept() -> None:
    between = llama()
    fates = plan(between, Budget(inputs_size(between), ALONE))
    assert by_fate(fates, Fate.SAVE) == {*between.inputs}
    assert by_fate(fates, Fate.RECOMPUTE) == {*between.candidates}


def test_with_room_for_all_nothing_is_computed_again_that_takes_longer_than_to_keep_it() -> None:
    between = llama()
    fates = plan(between, Budget(everything(between), ALONE))
    again = recomputed(between, fates)
    assert not {str(node.target) for node in again} & {"aten.mm.default", "aten.bmm.default", "aten._softmax.default"}
    for node in again & {*between.candidates}:
        assert cost(between, {**fates, node: Fate.SAVE}, ALONE) >= cost(between, fates, ALONE) * (1 - 1e-3)


def test_nothing_is_kept_that_is_not_needed() -> None:
    between = llama()
    for limit in range(inputs_size(between), everything(between), 20_000):
        fates = plan(between, Budget(limit, ALONE))
        for node in by_fate(fates, Fate.SAVE) & {*between.candidates}:
            assert cost(between, {**fates, node: Fate.RECOMPUTE}, ALONE) > cost(between, fates, ALONE), node


def test_what_does_not_fit_is_offloaded_where_that_is_faster() -> None:
    between = llama()
    limit = inputs_size(between) + 10_000
    slow, fast = (plan(between, Budget(limit, Rates(1e9, 1e9, host))) for host in (1e6, 1e12))
    assert not by_fate(slow, Fate.OFFLOAD)
    assert by_fate(fast, Fate.OFFLOAD)
    assert not [node for node in recomputed(between, fast) if "mm" in str(node.target)]


def test_inputs_that_do_not_fit_are_offloaded_however_long_it_takes() -> None:
    between = llama()
    fates = plan(between, Budget(0, Rates(1e9, 1e9, 1.0)))
    assert by_fate(fates, Fate.OFFLOAD) == {*between.inputs} and not saved_bytes(fates)


def test_a_budget_that_does_not_hold_the_inputs_is_an_error() -> None:
    between = llama()
    needed = inputs_size(between)
    with pytest.raises(GraphError, match=f"{needed - 1} bytes .* need {needed}"):
        plan(between, Budget(needed - 1, ALONE))


def test_a_limit_holds_to_the_byte() -> None:
    """Sizes of gigabytes and of a few bytes."""
    between = between_halves(lambda x, w: x * (x.mean() * w).exp() + (x @ w).tanh(), (2**15, 2**15), (2**15, 2**15))
    full = plan(between, Budget(everything(between), ALONE))
    for less in (0, 1, 4, 5):
        limit = saved_bytes(full) - less
        assert saved_bytes(plan(between, Budget(limit, ALONE))) <= limit
