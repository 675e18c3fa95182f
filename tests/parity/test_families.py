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

from wholestep.config.override import replace
from wholestep.graph.objective import Layers
from wholestep.graph.partition import Keep
from wholestep.graph.policies import POLICIES
from wholestep.graph.scan import loop
from wholestep.parallel import Mesh
from wholestep.xla.stacking import stack, unstack

MESH, ROWS, LENGTH = Mesh(replicate=2, fsdp=4), 8, 20
PERIODS = {"llama3": 1, "qwen3": 1, "muse_glimmer": 4}
EXECUTIONS = {
    "unrolled": Layers(Keep(POLICIES["save_all"])),
    "loop": Layers(Keep(POLICIES["recompute_all"]), looped=True),
}


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_loss_and_every_gradient(family: Family, execution: str) -> None:
    config, layers = family.tiny(False), EXECUTIONS[execution]
    if not layers.looped:  # by depth, each layer's matrices would need programs of their own to start
        config = replace(config, "residual_init", "alike")
    with torch.device("meta"):
        module = config.build()
    run = captured(module, KeepGradients(), fields(ROWS, LENGTH), MESH, layers=layers)
    program, step = run.program, run.program.step
    assert step.notes == ()
    loops = [node for node in step.module.graph.nodes if node.target is loop]
    period = PERIODS[str(family)]
    found = [(node.kwargs["period"], len(node.args[2][0].meta["val"])) for node in loops]
    assert found == ([(period, len(config.layers) // period)] * 2 if layers.looped else [])

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
