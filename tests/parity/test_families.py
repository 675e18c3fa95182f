"""A captured step of a tiny model of each family against plain PyTorch: loss and every gradient, layers laid out and
looped. Llama 3 is what other files of this folder train, and mixtures of experts are in test_mixture.py."""

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
    tiny_config,
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
PERIODS = {"qwen3": 1, "muse_glimmer": 4}
EXECUTIONS = {
    "unrolled": Layers(Keep(POLICIES["save_all"])),
    "loop": Layers(Keep(POLICIES["recompute_all"]), looped=True),
}


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("family", [family for family in FAMILIES if str(family) in PERIODS], ids=str)
def test_loss_and_every_gradient(family: Family, execution: str) -> None:
    # By depth, each layer's matrices would need programs of their own to start, which take long to compile.
    config, layers = replace(family.tiny(False), "residual_init", "alike"), EXECUTIONS[execution]
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


def test_layers_whose_widths_fall_with_depth_are_a_loop() -> None:
    with torch.device("meta"):
        module = replace(tiny_config(), "residual_init", "by_depth").build()
    run = captured(module, KeepGradients(), fields(1, LENGTH), Mesh(), layers=EXECUTIONS["loop"])
    assert run.program.step.notes == ()
    state = unstack(run.state, run.program.step, run.program.mesh)
    for name, ratio in {"attention.o_proj": 2**-0.5, "feed_forward.down_proj": 2**-0.5, "attention.q_proj": 1}.items():
        first, second = (np.asarray(state[f"parameter/layers.{i}.{name}.weight"]) for i in (0, 1))
        assert second.std() / first.std() == pytest.approx(ratio, rel=0.1), name
