"""A training step small enough to look at: rows go through a module, the loss is their weighted squares."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from wholestep.graph.capture import Field, capture_train_step
from wholestep.graph.optimizer import AdamW
from wholestep.graph.step import StepGraph, graphs
from wholestep.parallel import Mesh, Policy, simple_fsdp, simulated_device_mesh

WIDTH, HIDDEN = 6, 10


class Gain(nn.Module):
    """A learned factor for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(HIDDEN))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Stack(nn.Module):
    """Plain PyTorch layers with PyTorch's own initialization."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, HIDDEN)
        self.gain = Gain()
        self.last = nn.Linear(HIDDEN, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.gain(self.first(x)).tanh())


def weighted_squares(module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    squares = module(batch["x"]).square().sum(-1)
    return (squares * batch["weight"]).sum(), batch["weight"].sum(), {"largest": squares.detach().amax()}


def batch_fields(rows: int) -> dict[str, Field]:
    return {"x": Field((rows, WIDTH), torch.float32), "weight": Field((rows,), torch.float32)}


def random_rows(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((rows, WIDTH)).astype(np.float32),
        "weight": rng.integers(0, 3, rows).astype(np.float32),
    }


def capture(
    module: nn.Module,
    mesh: Mesh,
    rows: int = 8,
    microbatches: int = 1,
    optimizer: AdamW | None = None,
    policy: Policy | None = None,
) -> StepGraph:
    """The step that trains `module` on `rows` rows."""
    with simulated_device_mesh(mesh) as simulated:
        simple_fsdp(module, simulated, policy)
        return capture_train_step(
            module, weighted_squares, optimizer or AdamW(), batch_fields(rows), simulated, microbatches
        )


def text_of(step: StepGraph) -> str:
    """The graph and its loop bodies, to compare."""
    return "\n".join(str(module.graph) for module in graphs(step.module))
