"""Every way to run the layers against every other: laid out, as loops, as programs of their own, under every policy."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import captured, fields, random_batch, relative_error, tiny_config
from torch import nn

from wholestep.config.override import replace
from wholestep.graph.budget import Budget
from wholestep.graph.costs import Rates
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep
from wholestep.graph.policies import POLICIES, recompute_all
from wholestep.graph.rules import by_rules
from wholestep.graph.split import Cut
from wholestep.models.decoder import Decoder
from wholestep.parallel import Mesh
from wholestep.xla.stacking import unstack

LENGTH = 12
ONE, EIGHT, HYBRID = Mesh(), Mesh(fsdp=8), Mesh(replicate=2, fsdp=4)
SCALARS = {"learning_rate": 1e-3, "seed": 7}


def drop(module: nn.Module, args: object, result: torch.Tensor) -> torch.Tensor:
    return F.dropout(result, 0.2, module.training)


def model(alternating: bool, tied: bool, dropout: bool) -> nn.Module:
    """Four layers: alike, or of two widths in turn."""
    config: Decoder.Config = tiny_config(tied)
    wide = replace(config, "layers.*.feed_forward.hidden_dim", 58).layers[0]
    layers = (config.layers[0], wide if alternating else config.layers[0]) * 2
    with torch.device("meta"):
        module = dataclasses.replace(config, layers=layers).build()
    if dropout:
        for layer in module.layers:
            layer.attention.register_forward_hook(drop)
            layer.feed_forward.register_forward_hook(drop)
    return module


@dataclasses.dataclass(frozen=True)
class Case:
    """What is trained, and on what."""

    mesh: Mesh
    microbatches: int = 1
    alternating: bool = False
    tied: bool = False
    dropout: bool = False

    def __str__(self) -> str:
        extras = [name for name in ("alternating", "tied", "dropout") if getattr(self, name)]
        return "-".join([f"{self.mesh}", f"{self.microbatches}", *extras])


def steps(case: Case, layers: Layers | None, cut: Cut | None = None, slots_on_host: bool = False):
    """Losses, and the state at the end with a value for each layer."""
    rows = 8 * case.microbatches
    run = captured(
        model(case.alternating, case.tied, case.dropout),
        # An eps of the gradients' size: with a small one, AdamW blows up the rounding of gradients next to nothing, and
        # hides a gradient that is twice what it should be.
        AdamW(lr=1e-3, eps=1e-3),
        fields(rows, LENGTH),
        case.mesh,
        microbatches=case.microbatches,
        layers=layers,
        cut=cut,
        slots_on_host=slots_on_host,
    )
    state, losses = run.state, []
    for step in (1, 2):
        batch = run.program.place_batch(random_batch(rows, LENGTH, 53, seed=step))
        state, metrics = run.program(state, batch, {**SCALARS, "step": step})
        losses.append(float(metrics["loss"]))
    apart = unstack(state, run.program.step, run.program.mesh)
    return losses, {name: np.asarray(value) for name, value in apart.items()}


@functools.cache
def reference(case: Case):
    """Without dropout the plain step, traced straight through the layers. With it, layers laid out: they say what each
    draws."""
    return steps(case, Layers(Keep(POLICIES["save_all"], gathered=True)) if case.dropout else None)


def check_equal(results, expected) -> None:
    losses, state = results
    expected_losses, expected_state = expected
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    assert state.keys() == expected_state.keys()
    for name, value in expected_state.items():
        # A square has twice the relative error of what it is the square of, which is what programs differ in.
        of = np.sqrt if name.startswith("exp_avg_sq/") else np.asarray
        error = relative_error(of(state[name]), of(value))
        assert error < 1e-6, f"{name} is off by {error:.1e}"


EXECUTIONS = {
    "unrolled": (False, None),
    "loop": (True, None),
    "split": (False, Cut()),
}
POLICY_NAMES = ("save_all", "recompute_all", "save_matmuls", "offload_layer_inputs")


def matrix() -> list[Any]:
    """Every execution with every policy and mesh: in CI those of which each policy meets each execution once, and each
    mesh once; all by `make test-depth`."""
    return [
        pytest.param(execution, policy, mesh, marks=() if (e + p) % 3 == m else pytest.mark.long)
        for e, execution in enumerate(EXECUTIONS)
        for p, policy in enumerate(POLICY_NAMES)
        for m, mesh in enumerate((ONE, EIGHT, HYBRID))
    ]


@pytest.mark.parametrize(("execution", "policy", "mesh"), matrix(), ids=str)
def test_the_matrix(execution: str, policy: str, mesh: Mesh) -> None:
    """Dropout on, embeddings tied, two microbatches."""
    looped, cut = EXECUTIONS[execution]
    case = Case(mesh, microbatches=2, tied=True, dropout=True)
    check_equal(steps(case, Layers(Keep(POLICIES[policy]), looped), cut), reference(case))


@pytest.mark.parametrize("alternating", [False, True])
def test_gradient_norms_are_in_the_models_order(alternating: bool) -> None:
    case, norms = Case(ONE, alternating=alternating), []
    for layers in (None, Layers(Keep(POLICIES["save_all"]), looped=True)):
        module = model(case.alternating, case.tied, case.dropout)
        names = tuple(name for name, _ in module.named_parameters())
        run = captured(module, AdamW(), fields(8, LENGTH), case.mesh, layers=layers)
        batch = run.program.place_batch(random_batch(8, LENGTH, 53, seed=1))
        _, metrics = run.program(run.state, batch, {**SCALARS, "step": 1})
        (value,) = [value for value in run.program.step.outputs if value.name == "metric/grad_norms"]
        assert value.members == names
        norms.append(np.asarray(metrics["grad_norms"]))
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-5)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("case", [Case(ONE), Case(HYBRID, alternating=True)], ids=str)
def test_the_plain_step(execution: str, case: Case) -> None:
    looped, cut = EXECUTIONS[execution]
    check_equal(steps(case, Layers(Keep(POLICIES["save_all"]), looped), cut), reference(case))


RATES = Rates(flops_per_second=1e9, hbm_bytes_per_second=1e9, host_bytes_per_second=1e8)


@pytest.mark.parametrize(
    "policy",
    [
        Budget(0, RATES),
        Budget(60_000, RATES),
        by_rules(["mm@*.o_proj=save", "softmax@attention.inner=offload", "input@*=offload"], recompute_all),
    ],
    ids=["all offloaded", "budget", "rules"],
)
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_budgets_and_rules(execution: str, policy) -> None:
    looped, cut = EXECUTIONS[execution]
    case = Case(EIGHT, alternating=True, dropout=True)
    check_equal(steps(case, Layers(Keep(policy), looped), cut), reference(case))


@pytest.mark.parametrize("cut", [Cut("passes"), Cut(layers_per_piece=2)], ids=str)
def test_other_cuts(cut: Cut) -> None:
    case = Case(EIGHT, microbatches=2, tied=True, dropout=True)
    check_equal(steps(case, Layers(Keep(recompute_all, gathered=True)), cut), reference(case))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_the_optimizer_on_the_host(execution: str) -> None:
    looped, cut = EXECUTIONS[execution]
    case = Case(HYBRID, tied=True)
    check_equal(steps(case, Layers(Keep(POLICIES["save_all"]), looped), cut, slots_on_host=True), reference(case))
