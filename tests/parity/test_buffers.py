"""Buffers that layers change: counted once a step, whatever is computed again, on however many devices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from wholestep.errors import GraphError
from wholestep.graph.capture import capture_eval_step, capture_train_step
from wholestep.graph.initialize import capture_initializers
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep
from wholestep.graph.policies import recompute_all, save_all
from wholestep.graph.signature import Field
from wholestep.graph.split import Cut
from wholestep.parallel import Mesh, simple_fsdp, simulated_device_mesh
from wholestep.xla.devices import device_mesh
from wholestep.xla.initialize import initialize_state
from wholestep.xla.program import Program
from wholestep.xla.split_program import SplitProgram
from wholestep.xla.stacking import unstack

ROWS, WIDTH, DEPTH = 16, 6, 4
FIELDS = {"x": Field((ROWS, WIDTH), torch.float32)}


class Counting(nn.Module):
    """Counts the rows whose first element is positive, as a mixture of experts counts its tokens, in place and by
    assignment; and uses what it has counted so far."""

    buffer_reductions = {"count": "sum", "largest_mean": "mean"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("largest_mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = x + torch.tanh(self.linear(x)) / (1 + self.largest_mean)
        with torch.no_grad():
            positive = (y[:, 0] > 0).sum()
            self.count += torch.stack([positive, y.shape[0] - positive])
            self.largest_mean = 0.9 * self.largest_mean + 0.1 * y.mean()
        return y


class Undeclared(Counting):
    buffer_reductions = {}  # noqa: RUF012


class Model(nn.Module):
    def __init__(self, kind: type[Counting] = Counting) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def objective(module: nn.Module, batch: dict[str, Tensor]):
    result = module(batch["x"])
    return result.square().sum(), torch.ones(()) * result.shape[0], {}


def batch_of(step: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(step).normal(size=(ROWS, WIDTH)).astype(np.float32)}


def trained(mesh: Mesh, layers: Layers | None, cut: Cut | None = None, microbatches: int = 1, steps: int = 3):
    with torch.device("meta"):
        module = Model()
    initializers = capture_initializers(module)
    with simulated_device_mesh(mesh) as simulated:
        simple_fsdp(module, simulated)
        optimizer = AdamW(lr=1e-2, clip_norm=None)
        step = capture_train_step(module, objective, optimizer, FIELDS, simulated, microbatches, layers)
    devices = device_mesh(mesh)
    program = SplitProgram(step, devices, cut) if cut else Program(step, devices)
    state = initialize_state(step, initializers, devices, 0)
    start = unstack(state, step, devices)
    start = {name: np.asarray(value) for name, value in start.items()}
    for number in range(1, steps + 1):
        state, _ = program(state, program.place_batch(batch_of(number)), {"learning_rate": 1e-2, "step": number})
    return start, {name: np.asarray(value) for name, value in unstack(state, step, devices).items()}


def eager(start: dict[str, np.ndarray], steps: int = 3) -> dict[str, np.ndarray]:
    module = Model()
    module.load_state_dict(
        {
            name.partition("/")[2]: torch.tensor(value)
            for name, value in start.items()
            if name.startswith(("parameter/", "buffer/"))
        }
    )
    adamw = torch.optim.AdamW(module.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for number in range(1, steps + 1):
        adamw.zero_grad()
        loss_sum, weight, _ = objective(module, {"x": torch.from_numpy(batch_of(number)["x"])})
        (loss_sum / weight).backward()
        adamw.step()
    return {name: value.detach().numpy() for name, value in module.state_dict().items()}


WAYS = {
    "plain": (None, None),
    "laid out": (Layers(Keep(save_all)), None),
    "laid out, recomputed": (Layers(Keep(recompute_all)), None),
    "loop": (Layers(Keep(save_all), looped=True), None),
    "loop, recomputed": (Layers(Keep(recompute_all), looped=True), None),
    "split, recomputed": (Layers(Keep(recompute_all)), Cut()),
}


@pytest.mark.parametrize("way", WAYS)
def test_buffers_equal_eager(way: str) -> None:
    start, after = trained(Mesh(), *WAYS[way])
    for name, value in eager(start).items():
        kind = "buffer" if name.endswith(("count", "largest_mean")) else "parameter"
        np.testing.assert_allclose(after[f"{kind}/{name}"], value, rtol=2e-5)
    assert after["buffer/layers.0.count"].sum() == 3 * ROWS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("microbatches", [1, 2])
def test_devices_and_microbatches_count_every_row_once(way: str, microbatches: int) -> None:
    """One step: then `largest_mean` is still zero when it is read, and the counts are those of one device."""
    _, alone = trained(Mesh(), None, steps=1)
    _, after = trained(Mesh(replicate=2, fsdp=4), *WAYS[way], microbatches=microbatches, steps=1)
    for layer in range(DEPTH):
        name = f"buffer/layers.{layer}.count"
        assert after[name].sum() == ROWS
        if microbatches == 1:  # a second microbatch sees the mean that the first has moved
            np.testing.assert_array_equal(after[name], alone[name])
            mean = f"buffer/layers.{layer}.largest_mean"
            np.testing.assert_allclose(after[mean], alone[mean], rtol=1e-5)


def test_how_changes_come_together_must_be_said() -> None:
    with torch.device("meta"):
        module = Model(Undeclared)
    with simulated_device_mesh(Mesh(fsdp=2)) as mesh:
        simple_fsdp(module, mesh)
        with pytest.raises(GraphError, match=r"changes the buffer layers\.0\.count .* buffer_reductions = \{'count'"):
            capture_train_step(module, objective, AdamW(), FIELDS, mesh)


@pytest.mark.parametrize("way", ["plain", "laid out", "loop"])
def test_evaluation_changes_no_buffer(way: str) -> None:
    with torch.device("meta"):
        module = Model()
    with simulated_device_mesh(Mesh(fsdp=2)) as mesh:
        simple_fsdp(module, mesh)
        step = capture_eval_step(module, objective, FIELDS, mesh, WAYS[way][0])
    assert {value.kind for value in step.outputs} == {"metric"} and module.training
