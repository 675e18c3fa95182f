"""A captured step of a tiny model of each family against plain PyTorch: loss and every gradient, layers laid out and
looped."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models.families import FAMILIES, VOCABULARY, Family
from support import (
    TOLERANCE,
    KeepGradients,
    captured,
    eager_loss,
    fields,
    load,
    random_batch,
    relative_error,
    unpadded,
)

from wholestep.graph.objective import Layers
from wholestep.graph.partition import Keep
from wholestep.graph.policies import POLICIES
from wholestep.graph.scan import loop
from wholestep.parallel import Mesh
from wholestep.xla.stacking import stack, unstack

ROWS, LENGTH = 8, 20
PERIODS = {"llama3": 1, "qwen3": 1, "muse_glimmer": 4}
EXECUTIONS = {
    "unrolled": Layers(Keep(POLICIES["save_all"])),
    "loop": Layers(Keep(POLICIES["recompute_all"]), looped=True),
}


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(replicate=2, fsdp=4)], ids=str)
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_loss_and_every_gradient(family: Family, execution: str, mesh: Mesh) -> None:
    config, layers = family.tiny(False), EXECUTIONS[execution]
    with torch.device("meta"):
        module = config.build()
    run = captured(module, KeepGradients(), fields(ROWS, LENGTH), mesh, layers=layers)
    program, step = run.program, run.program.step
    assert step.notes == ()
    loops = [node for node in step.module.graph.nodes if node.target is loop]
    trips = len(config.layers) // PERIODS[str(family)]
    assert [len(node.args[1][0].meta["val"]) for node in loops] == ([trips, trips] if layers.looped else [])

    apart, reference = unstack(run.state, step, program.mesh), config.build()
    if not np.asarray(apart["parameter/norm.weight"]).any():
        apart["parameter/norm.weight"] += 1.0  # with a gain of 0 no other parameter has a gradient
    load(reference, apart)
    batch = random_batch(ROWS, LENGTH, VOCABULARY, seed=1)
    loss = eager_loss(reference, batch)
    loss.backward()
    state = stack(apart, step, program.mesh)
    state, metrics = program(state, program.place_batch(batch), {"learning_rate": 0.0, "step": 1})

    assert float(metrics["loss"]) == pytest.approx(loss.item(), rel=TOLERANCE[torch.float32])
    gradients = unpadded(unstack(state, step, program.mesh), "grad", reference)
    for name, parameter in reference.named_parameters():
        error = relative_error(gradients[name], parameter.grad.numpy())
        assert parameter.grad.any(), name
        assert error < TOLERANCE[torch.float32], f"gradient of {name} is off by {error:.1e}"
