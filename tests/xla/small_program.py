"""The small step of `graph/small_step.py` as a program with its first state."""

from __future__ import annotations

from typing import Any

import jax
from graph.small_step import capture, random_rows
from support import Captured
from torch import nn

from wholestep.graph.initialize import capture_initializers
from wholestep.parallel import Mesh
from wholestep.xla.devices import device_mesh
from wholestep.xla.initialize import initialize_state
from wholestep.xla.program import Program, State


def start(module: nn.Module, mesh: Mesh, seed: int = 0, **options: Any) -> Captured:
    """`module`'s train step and first state; options are those of `capture`."""
    initializers = capture_initializers(module)
    step, devices = capture(module, mesh, **options), device_mesh(mesh)
    return Captured(Program(step, devices), initialize_state(step, initializers, devices, seed))


def run_step(run: Captured, rows: int = 8, step: int = 1) -> tuple[State, dict[str, jax.Array]]:
    """One step from `run.state`, which it uses up."""
    batch = run.program.place_batch(random_rows(rows, seed=step))
    return run.program(run.state, batch, {"learning_rate": 0.1, "step": step})
