"""Costs of nodes against ones worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from graph.small_joint import traced
from support import OBJECTIVE, fields, tiny_config
from torch import Tensor, fx

from wholestep.graph.capture import capture_train_step
from wholestep.graph.costs import Rates, bytes_moved, flops, seconds, seconds_to_keep, size, step_flops
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep
from wholestep.graph.policies import recompute_all, save_all
from wholestep.graph.scan import scan
from wholestep.graph.step import StepGraph
from wholestep.parallel import Mesh, simple_fsdp, simulated_device_mesh

aten = torch.ops.aten
PRODUCT = 2 * 3 * 5 * 7


def only(module: fx.GraphModule, target: object) -> fx.Node:
    (node,) = (node for node in module.graph.nodes if node.target == target)
    return node


def step(module: fx.GraphModule) -> StepGraph:
    return StepGraph(module, (), (), {})


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (aten.mm, [(3, 5), (5, 7)], PRODUCT),
        (aten.bmm, [(4, 3, 5), (4, 5, 7)], 4 * PRODUCT),
        (aten.addmm, [(7,), (3, 5), (5, 7)], PRODUCT),
        (aten.baddbmm, [(4, 3, 7), (4, 3, 5), (4, 5, 7)], 4 * PRODUCT),
        (lambda x, w: aten.convolution(x, w, None, [1], [0], [1], False, [0], 1), [(2, 5, 9), (7, 5, 3)], 14 * PRODUCT),
        (torch.tanh, [(3, 5)], 0),
        (lambda x: x.sum(), [(3, 5)], 0),
    ],
)
def test_flops(function, shapes, expected) -> None:
    module = traced(lambda *tensors: [function(*tensors)], *shapes)
    assert sum(map(flops, module.graph.nodes)) == expected
    assert step_flops(step(module)) == expected


def test_size_of_one_and_of_several_results() -> None:
    module = traced(lambda x: [*torch.topk(x, 2)], (3, 5))
    values, indices = (node for node in module.graph.nodes if node.name.startswith("getitem"))
    assert (size(values), size(indices)) == (3 * 2 * 4, 3 * 2 * 8)
    assert size(only(module, aten.topk.default)) == size(values) + size(indices)
    assert size(module.graph.output_node()) == 0


def test_a_matrix_product_reads_its_operands_and_writes_its_result() -> None:
    module = traced(lambda x, w: [x @ w.T], (3, 5), (7, 5))
    assert bytes_moved(only(module, aten.mm.default)) == 4 * (3 * 5 + 5 * 7 + 3 * 7)
    assert bytes_moved(only(module, aten.permute.default)) == 0


def test_what_is_fused_does_not_move() -> None:
    """Of `tanh(x) * y` summed up, tanh reads x, the product y, the sum writes."""
    module = traced(lambda x, y: [(torch.tanh(x) * y).sum(1)], (3, 5), (3, 5))
    targets = (aten.tanh.default, aten.mul.Tensor, aten.sum.dim_IntList)
    assert [bytes_moved(only(module, target)) for target in targets] == [60, 60, 12]


def test_what_something_else_reads_is_written() -> None:
    module = traced(lambda x: [torch.tanh(x).view(5, 3) @ x], (3, 5))
    assert bytes_moved(only(module, aten.tanh.default)) == 120


def test_seconds_are_those_of_the_slower_of_arithmetic_and_memory() -> None:
    module = traced(lambda x, w: [x @ w], (3, 5), (5, 7))
    node = only(module, aten.mm.default)
    assert seconds(node, Rates(PRODUCT, 1e9, 0)) == 1
    assert seconds(node, Rates(1e9, 4 * (15 + 35 + 21), 0)) == 1
    assert seconds(node.args[0], Rates(1, 1, 0)) == 0


def test_only_what_stays_in_a_fusion_takes_time_to_keep() -> None:
    module = traced(lambda x: [torch.tanh(torch.exp(x))], (3, 5))
    rates = Rates(1, 60, 0)
    assert seconds_to_keep(only(module, aten.exp.default), rates) == 2
    assert seconds_to_keep(only(module, aten.tanh.default), rates) == 0


def multiplied(carry: Sequence[Tensor], x: Sequence[Tensor], consts: Sequence[Tensor]):
    """One product 3 x 5 x 5."""
    return [carry[0] @ x[0]], []


def outer(carry: Sequence[Tensor], x: Sequence[Tensor], consts: Sequence[Tensor]):
    """A loop of four products, and one more."""
    inner, _ = scan(multiplied, carry, consts)
    return [inner[0] @ x[0]], []


def test_a_loop_costs_its_body_times_its_trips() -> None:
    once = 2 * 3 * 5 * 5
    flat = traced(lambda x, ws: scan(multiplied, [x], [ws])[0], (3, 5), (6, 5, 5))
    assert step_flops(step(flat)) == 6 * once
    nested = traced(lambda x, ws, vs: scan(outer, [x], [ws], [vs])[0], (3, 5), (6, 5, 5), (4, 5, 5))
    assert step_flops(step(nested)) == 6 * (4 + 1) * once
    node = next(node for node in flat.graph.nodes if node.name == "loop")
    moved = 4 * (3 * 5 + 5 * 5 + 3 * 5)
    assert bytes_moved(node) == 6 * moved
    assert seconds(node, Rates(1e12, moved, 0)) == 6


def test_a_node_that_runs_a_graph_costs_what_the_graph_does() -> None:
    body = traced(lambda x, w: [x @ w], (3, 5), (5, 7))
    graph = fx.Graph()
    inside = graph.get_attr("body")
    graph.output([graph.call_function(lambda body, *args: body(*args), (inside,))])
    assert step_flops(step(fx.GraphModule({"body": body}, graph))) == PRODUCT


@pytest.mark.parametrize("looped", [True, False])
def test_a_step_costs_what_it_does_without_layers_and_what_it_computes_again(looped: bool) -> None:
    def captured(layers: Layers | None) -> int:
        with torch.device("meta"):
            module = tiny_config().build()
        with simulated_device_mesh(Mesh(fsdp=2)) as mesh:
            simple_fsdp(module, mesh)
            return step_flops(capture_train_step(module, OBJECTIVE, AdamW(), fields(4, 16), mesh, layers=layers))

    laid_out, saved, recomputed = (
        captured(layers) for layers in (None, Layers(Keep(save_all), looped), Layers(Keep(recompute_all), looped))
    )
    assert saved == laid_out
    # By token, of two layers: q, k, v, attention's two products over 16 tokens and 6 heads of 10, o, gate and up. What
    # the last product of a layer returns, no gradient needs.
    per_token = 2 * 36 * (60 + 20 + 20) + 2 * 2 * 16 * 60 + 2 * 60 * 36 + 2 * 2 * 36 * 46
    assert recomputed - saved == 2 * (2 * 16) * per_token
