"""What there is to choose from between a forward and a backward pass."""

from __future__ import annotations

import torch
from graph.small_joint import between_halves
from torch import Tensor

from wholestep.graph.intermediates import find_recomputed


def names(nodes) -> set[str]:
    return {str(node.target) for node in nodes}


def test_candidates_are_what_would_be_computed_again() -> None:
    """The gradients need tanh's result, made into `1 - tanh ** 2`, and so the product behind it; not the sum."""
    between = between_halves(lambda x, w: x + torch.tanh(x @ w), (3, 5), (5, 5))
    mm, tanh, squared, rest = between.candidates
    assert [str(node.target).split(".")[1] for node in between.candidates] == ["mm", "tanh", "mul", "sub"]
    inputs = {*between.inputs}
    read, recomputed = find_recomputed(between.wanted, inputs)
    assert read == inputs and recomputed >= {mm, tanh, squared, rest}
    read, recomputed = find_recomputed(between.wanted, {*inputs, mm, tanh})
    assert read == {*inputs, tanh} and recomputed & {*between.candidates} == {squared, rest}


def test_what_depends_on_weights_alone_is_no_candidate() -> None:
    between = between_halves(lambda x, w: x @ torch.tanh(w), (3, 5), (5, 5))
    assert not between.candidates
    assert "aten.tanh.default" in names(find_recomputed(between.wanted, between.inputs)[1])


def test_each_of_several_results_is_a_candidate_and_a_view_is_not() -> None:
    def layer(x: Tensor, w: Tensor) -> Tensor:
        values, indices = torch.topk(x @ w, 2)
        one, other = values.exp().split(1, 1)
        return x * one * other * indices.sum()

    between = between_halves(layer, (3, 5), (5, 4))
    taken = [node.all_input_nodes[0] for node in between.candidates if "getitem" in node.name]
    assert names(taken) == {"aten.topk.default"} and len(taken) == 2
    assert "aten.topk.default" not in names(between.candidates)
    assert "aten.split_with_sizes.default" not in names(between.candidates)
