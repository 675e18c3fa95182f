"""Layers as loops, under every policy, against layers laid out one after the other."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support import TOLERANCE, captured, fields, random_batch, relative_error, tiny_config

from wholestep.config.override import replace
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep
from wholestep.graph.policies import POLICIES
from wholestep.models.decoder import Decoder
from wholestep.parallel import Mesh
from wholestep.xla.stacking import unstack

LENGTH = 12


def model(alternating: bool, tied: bool):
    """Four layers: alike, or of two widths in turn."""
    config: Decoder.Config = tiny_config(tied)
    wide = replace(config, "layers.*.feed_forward.hidden_dim", 58).layers[0]
    layers = (config.layers[0], wide if alternating else config.layers[0]) * 2
    with torch.device("meta"):
        return dataclasses.replace(config, layers=layers).build()


def three_steps(mesh: Mesh, layers: Layers | None, microbatches: int, alternating: bool, tied: bool):
    rows = 8 * microbatches
    run = captured(
        model(alternating, tied),
        # An eps of the gradients' size: with a small one, AdamW blows up the rounding of gradients next to nothing, and
        # hides a gradient that is twice what it should be.
        AdamW(lr=1e-3, eps=1e-3),
        fields(rows, LENGTH),
        mesh,
        microbatches=microbatches,
        layers=layers,
    )
    state, losses = run.state, []
    for step in range(1, 4):
        batch = run.program.place_batch(random_batch(rows, LENGTH, 53, seed=step))
        state, metrics = run.program(state, batch, {"learning_rate": 1e-3, "step": step})
        losses.append(float(metrics["loss"]))
    apart = unstack(state, run.program.step, run.program.mesh)
    return losses, {name: np.asarray(value) for name, value in apart.items()}


_UNROLLED: dict[tuple, tuple] = {}


def unrolled(mesh: Mesh, microbatches: int, alternating: bool, tied: bool):
    key = (str(mesh), microbatches, alternating, tied)
    if key not in _UNROLLED:
        _UNROLLED[key] = three_steps(mesh, None, microbatches, alternating, tied)
    return _UNROLLED[key]


CASES = [(Mesh(), policy, 1, False, False) for policy in POLICIES]
CASES += [(Mesh(fsdp=8), policy, 2, False, True) for policy in ("save_all", "recompute_all", "offload_layer_inputs")]
CASES += [(Mesh(replicate=2, fsdp=4), policy, 2, True, False) for policy in ("save_all", "save_matmuls")]
CASES += [(Mesh(replicate=2, fsdp=4), "recompute_all", 1, False, False)]


@pytest.mark.parametrize(("mesh", "policy", "microbatches", "alternating", "tied"), CASES, ids=str)
def test_loops_equal_layers_laid_out(mesh, policy, microbatches, alternating, tied) -> None:
    losses, state = three_steps(mesh, Layers(Keep(POLICIES[policy]), looped=True), microbatches, alternating, tied)
    expected_losses, expected = unrolled(mesh, microbatches, alternating, tied)
    assert losses == pytest.approx(expected_losses, rel=TOLERANCE[torch.float32])
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        error = relative_error(state[name], value)
        assert error < TOLERANCE[torch.float32], f"{name} is off by {error:.1e}"
