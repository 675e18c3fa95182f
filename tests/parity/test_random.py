"""Dropout: what draws, what it depends on, and what it must not depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wholestep.graph.capture import capture_eval_step, capture_train_step
from wholestep.graph.initialize import capture_initializers
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep
from wholestep.graph.policies import recompute_all, save_all
from wholestep.graph.signature import Field
from wholestep.parallel import Mesh, simple_fsdp, simulated_device_mesh
from wholestep.xla.devices import device_mesh
from wholestep.xla.initialize import initialize_state
from wholestep.xla.program import Program

ROWS, WIDTH, DEPTH = 16, 64, 3


class Drop(nn.Module):
    """Adds to its input a mask that it draws, so that every layer's mask can be told from the output."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.gain)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.gain.expand(x.shape), 0.25, self.training)


class Masks(nn.Module):
    """Returns the running sum of its layers' masks, which reaches the metrics through the objective."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(1, 1, bias=False)
        self.layers = nn.ModuleList(Drop() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale.weight.squeeze()


def objective(module: nn.Module, batch: dict[str, Tensor]):
    """Sums that identify the masks: a random combination of them for each row."""
    result = module(batch["x"])
    rows = (result * batch["weights"]).sum(1)
    return result.sum(), torch.ones(()) * result.shape[0], {"signature": (rows * rows).sum(), "mean": result.mean()}


FIELDS = {name: Field((ROWS, WIDTH), torch.float32) for name in ("x", "weights")}


def run(
    mesh: Mesh = Mesh(),  # noqa: B008
    layers: Layers | None = None,
    microbatches: int = 1,
    seed: int = 0,
    step: int = 1,
    train: bool = True,
) -> float:
    with torch.device("meta"):
        module = Masks()
    initializers = capture_initializers(module)
    with simulated_device_mesh(mesh) as simulated:
        simple_fsdp(module, simulated)
        if train:
            graph = capture_train_step(module, objective, AdamW(), FIELDS, simulated, microbatches, layers)
        else:
            graph = capture_eval_step(module, objective, FIELDS, simulated, layers)
    program = Program(graph, device_mesh(mesh))
    state = initialize_state(graph, initializers, program.mesh, 0)
    state["parameter/scale.weight"] = np.ones_like(state["parameter/scale.weight"])
    rng = np.random.default_rng(0)
    batch = {"x": np.zeros((ROWS, WIDTH), np.float32), "weights": rng.normal(size=(ROWS, WIDTH)).astype(np.float32)}
    scalars = {"learning_rate": 0.0, "step": step, "seed": seed} if train else {}
    signature = float(program(state, program.place_batch(batch), scalars)[1]["signature"])
    return signature * ROWS if train else signature  # a training step's metrics are divided by the batch's weight


LAID_OUT, LOOPED = Layers(Keep(save_all)), Layers(Keep(recompute_all), looped=True)


def test_seed_and_step_decide() -> None:
    first = run()
    assert run() == first
    assert run(seed=1) != pytest.approx(first, rel=1e-3)
    assert run(seed=2**32 - 1) != pytest.approx(first, rel=1e-3)
    assert run(step=2) != pytest.approx(first, rel=1e-3)


def test_no_two_layers_draw_the_same() -> None:
    """Sums of independent masks: were any two layers' the same, the sum's variance would be larger."""
    weights = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    mean = float(((DEPTH * weights.sum(1)) ** 2).sum())
    variance_of_a_mask = 0.25 / 0.75
    independent = DEPTH * variance_of_a_mask * float((weights**2).sum())
    drawn = [run(layers=LOOPED, seed=seed) for seed in range(8)]
    spread = np.mean(drawn) - mean
    assert 0.5 * independent < spread < 1.5 * independent  # two alike would give 5/3, three 3


def test_evaluation_draws_nothing() -> None:
    weights = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    assert run(layers=LOOPED, train=False) == pytest.approx(float(((DEPTH * weights.sum(1)) ** 2).sum()), rel=1e-4)


def test_layers_laid_out_and_looped_draw_the_same() -> None:
    assert run(layers=LAID_OUT) == pytest.approx(run(layers=LOOPED), rel=1e-6)


@pytest.mark.parametrize("layers", [None, LAID_OUT, LOOPED], ids=["plain", "laid out", "loop"])
@pytest.mark.parametrize(("mesh", "microbatches"), [(Mesh(fsdp=8), 1), (Mesh(replicate=2, fsdp=4), 2)], ids=str)
def test_rows_draw_the_same_however_they_are_split(layers: Layers | None, mesh: Mesh, microbatches: int) -> None:
    assert run(mesh, layers, microbatches) == pytest.approx(run(layers=layers), rel=1e-5)
