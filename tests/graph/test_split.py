"""Where a step is cut, what the pieces share, and how they hand values on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import OBJECTIVE, captured, fields, random_batch, tiny_config

from wholestep.config.override import replace
from wholestep.graph.capture import capture_train_step
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep
from wholestep.graph.policies import offload_layer_inputs, recompute_all, save_all
from wholestep.graph.split import Cut, Piece, Plan, Repeat, split
from wholestep.graph.step import StepGraph
from wholestep.parallel import Mesh, simple_fsdp, simulated_device_mesh

LENGTH, MESH = 12, Mesh(fsdp=2)


def model(depth: int, widths: tuple[int, ...] = (46,), dropout: bool = False):
    """A tiny Llama whose layers have these feed-forward widths in turn."""
    config = tiny_config()
    kinds = [replace(config, "layers.*.feed_forward.hidden_dim", width).layers[0] for width in widths]
    with torch.device("meta"):
        module = dataclasses.replace(config, layers=tuple(kinds[i % len(kinds)] for i in range(depth))).build()
    for layer in module.layers if dropout else ():
        # Outside of the layer's call:
        layer.register_forward_hook(lambda layer, args, result: (_drop(layer, args, result[0]), *result[1:]))
        layer.attention.register_forward_hook(_drop)  # in it
    return module


def _drop(module, args, result):
    return F.dropout(result, 0.1, module.training)


def step_of(module, policy=save_all, microbatches: int = 1) -> StepGraph:
    with simulated_device_mesh(MESH) as mesh:
        simple_fsdp(module, mesh)
        batch = fields(MESH.size * microbatches, LENGTH)
        return capture_train_step(module, OBJECTIVE, AdamW(), batch, mesh, microbatches, Layers(Keep(policy)))


def plan_of(depth: int, cut: Cut = Cut(), **kwargs) -> Plan:  # noqa: B008
    return split(step_of(model(depth, **kwargs)).module, cut)


def distinct(plan: Plan) -> int:
    return len({piece.fingerprint for piece in plan.pieces()})


def test_layers_that_are_alike_share_their_pieces() -> None:
    shallow, deep = plan_of(3), plan_of(9)
    assert len(deep.parts) == len(shallow.parts) + 6 * 4  # forward, backward, the gradients' squares, update
    assert distinct(deep) == distinct(shallow)


def test_each_kind_of_layer_has_its_own_pieces() -> None:
    alike, three = plan_of(6), plan_of(6, widths=(46, 58, 62))
    assert distinct(three) == distinct(alike) + 2 * 4
    assert distinct(plan_of(12, widths=(46, 58, 62))) == distinct(three)


def test_layers_per_piece() -> None:
    one, two = plan_of(8), plan_of(8, Cut(layers_per_piece=2))
    assert len(one.parts) - len(two.parts) == 4 * 4
    assert distinct(two) == distinct(one)


def test_three_passes() -> None:
    plan = plan_of(4, Cut("passes"))
    assert len(plan.parts) == 3
    forward, backward, optimizer = (
        {str(node.target) for node in part.module.graph.nodes if node.op == "call_function"} for part in plan.parts
    )
    assert "aten.embedding.default" in forward and "aten.nll_loss_backward.default" not in forward
    assert {"aten.nll_loss_backward.default", "aten.embedding_dense_backward.default"} <= backward
    assert "aten.lerp.Scalar" in str(plan.parts[2].module.graph) or "sqrt" in str(optimizer)


def test_microbatches_are_run_from_outside() -> None:
    plan = split(step_of(model(3), microbatches=4).module, Cut())
    (repeat,) = [part for part in plan.parts if isinstance(part, Repeat)]
    assert repeat.trips == 4
    assert len(repeat.body.parts) >= 6


def test_every_value_is_made_before_it_is_read() -> None:
    plan = plan_of(4, widths=(46, 58), dropout=True)
    known = set(plan.inputs)
    for part in plan.parts:
        assert set(part.inputs) <= known
        known |= set(part.outputs)
    assert set(plan.results) <= known


def test_layers_differ_in_what_they_draw_but_not_in_their_pieces() -> None:
    plan = plan_of(4, dropout=True)
    assert distinct(plan) == distinct(plan_of(8, dropout=True))
    drawing = [part for part in plan.parts if isinstance(part, Piece) and part.draws]
    assert len({part.scopes for part in drawing if part.scopes}) == 4
    assert len({part.first_draw for part in drawing if not part.scopes}) == 4


def test_constants_are_part_of_the_fingerprint() -> None:
    plans = [plan_of(2), split(step_of(_other_epsilon()).module, Cut())]
    assert {p.fingerprint for p in plans[0].pieces()} != {p.fingerprint for p in plans[1].pieces()}


def _other_epsilon():
    with torch.device("meta"):
        return replace(tiny_config(), "layers.*.attention_norm.eps", 1e-3).build()


@pytest.mark.parametrize("cut", [Cut(), Cut(layers_per_piece=2), Cut("passes")], ids=str)
def test_executables_do_not_grow_with_depth_and_give_the_same_numbers(cut: Cut) -> None:
    def run(depth: int, cut: Cut | None):
        rows = MESH.size * 2
        layers = Layers(Keep(recompute_all))
        ready = captured(model(depth), AdamW(), fields(rows, LENGTH), MESH, microbatches=2, layers=layers, cut=cut)
        batch = ready.program.place_batch(random_batch(rows, LENGTH, 53, seed=1))
        _, metrics = ready.program(ready.state, batch, {"learning_rate": 1e-3, "step": 1})
        return ready.program, float(metrics["grad_norm"])

    program, norm = run(4, cut)
    assert norm == pytest.approx(run(4, None)[1], rel=1e-6)
    if cut.at == "layers":
        assert len(run(8, cut)[0].executables) == len(program.executables)


def test_offloaded_values_are_handed_over_in_host_memory() -> None:
    plan = split(step_of(model(3), offload_layer_inputs).module, Cut())
    on_host = [node for part in plan.parts for node, host in zip(part.outputs, part.on_host, strict=True) if host]
    assert len(on_host) == 3 and {tuple(node.meta["val"].shape) for node in on_host} == {(1, LENGTH, 36)}


def test_a_state_that_is_used_up_takes_no_second_buffer() -> None:
    rows = MESH.size
    ready = captured(model(2), AdamW(), fields(rows, LENGTH), MESH, layers=Layers(Keep(save_all)), cut=Cut())
    before = dict(ready.state)
    batch = ready.program.place_batch(random_batch(rows, LENGTH, 53, seed=1))
    state, _ = ready.program(ready.state, batch, {"learning_rate": 1e-3, "step": 1})
    for name, array in before.items():
        assert array.is_deleted() == (name in {value.name for value in ready.program.step.outputs}), name
        assert np.isfinite(np.asarray(state[name])).all()
