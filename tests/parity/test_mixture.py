"""Mixtures of experts: gradients, router and counters against plain PyTorch, however the layers run."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import (
    OBJECTIVE,
    TOLERANCE,
    KeepGradients,
    as_tensors,
    captured,
    fields,
    load,
    random_batch,
    relative_error,
    tiny_config,
)
from torch import Tensor, nn

from wholestep.config.override import apply
from wholestep.graph.capture import capture_eval_step
from wholestep.graph.objective import Layers
from wholestep.graph.partition import Keep
from wholestep.graph.policies import POLICIES
from wholestep.graph.split import Cut
from wholestep.kernels import KERNELS
from wholestep.models.decoder import Decoder
from wholestep.models.layers.mixture import MixtureOfExperts
from wholestep.parallel import Mesh, simple_fsdp, simulated_device_mesh
from wholestep.xla.stacking import unstack

ROWS, LENGTH, EXPERTS, CHOSEN = 8, 12, 5, 2
ONE, FOUR = Mesh(), Mesh(fsdp=4)
EXECUTIONS = {"unrolled": (False, None), "loop": (True, None), "split": (False, Cut())}
INNER = ["every_expert", *(kernel.name for kernel in KERNELS if kernel.path.endswith("feed_forward.inner"))]


def config(balance: str, inner: str = "every_expert", rate: float = 0.1) -> Decoder.Config:
    """A large rate, so that what it decides is seen."""
    tiny = tiny_config()
    mixture = MixtureOfExperts.Config(
        hidden_dim=22, num_experts=EXPERTS, num_chosen=CHOSEN, balance=balance, balance_rate=rate
    )
    layer = dataclasses.replace(tiny.layers[0], feed_forward=mixture)
    return apply(dataclasses.replace(tiny, layers=(layer,) * 2), [f"layers.*.feed_forward.inner={inner}"])


class Looped(nn.Module):
    """The experts of one mixture by a plain loop, each on the tokens that chose it."""

    def __init__(self, mixture: MixtureOfExperts) -> None:
        super().__init__()
        self.mixture = mixture

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, Tensor | None]:
        mixture, (B, L, D) = self.mixture, x_BLD.shape
        x_TD = x_BLD.reshape(-1, D)
        probabilities_TE = F.softmax(F.linear(x_TD, mixture.router.weight), -1)
        bias = mixture.bias if mixture.config.balance == "bias" else 0.0
        choices_TC = (probabilities_TE + bias).topk(CHOSEN).indices
        scores_TC = probabilities_TE.gather(1, choices_TC)
        scores_TC = scores_TC / scores_TC.sum(1, keepdim=True)
        out_TD = torch.zeros_like(x_TD)
        for expert in range(EXPERTS):
            tokens, places = (choices_TC == expert).nonzero(as_tuple=True)
            gate, up, down = (w.chunk(EXPERTS)[expert] for w in (mixture.gate_proj, mixture.up_proj, mixture.down_proj))
            hidden = F.silu(x_TD[tokens] @ gate.T) * (x_TD[tokens] @ up.T)
            out_TD = out_TD.index_add(0, tokens, hidden @ down.T * scores_TC[tokens, places, None])
        if mixture.config.balance != "loss":
            return out_TD.view(B, L, D), None
        # Hugging Face's term (`load_balancing_loss_func`), of one row and layer at a time.
        terms = []
        for row in range(B):
            places = slice(row * L, (row + 1) * L)
            choices = F.one_hot(choices_TC[places], EXPERTS).float().mean(0)
            evenness = (choices * probabilities_TE[places].mean(0)).sum() * EXPERTS
            terms.append(evenness * mixture.config.balance_rate)
        return out_TD.view(B, L, D), torch.stack(terms)


def counts_of(module: Decoder, batch: dict[str, np.ndarray]) -> list[np.ndarray]:
    """How many choices each expert of each layer has."""
    counts = []
    for layer in module.layers:
        layer.feed_forward.counted.zero_()
    with torch.no_grad():
        OBJECTIVE(module, as_tensors(batch))
    for layer in module.layers:
        counts.append(layer.feed_forward.counted.numpy().copy())
        layer.feed_forward.counted.zero_()
    return counts


@functools.cache
def initial(balance: str):
    with torch.device("meta"):
        module = config(balance).build()
    run = captured(module, KeepGradients(), fields(ROWS, LENGTH), ONE)
    eager = config(balance).build()
    load(eager, run.state)
    return eager


def expected(balance: str, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gradients by a loop over experts."""
    eager = config(balance).build()
    eager.load_state_dict(initial(balance).state_dict())
    names = {parameter: name for name, parameter in eager.named_parameters()}
    for layer in eager.layers:
        own = Looped(layer.feed_forward)
        layer.feed_forward.forward = own.forward
    loss, weight, _ = OBJECTIVE(eager, as_tensors(batch))
    (loss / weight).backward()
    return {names[p]: p.grad.numpy() for p in eager.parameters()}


@pytest.mark.parametrize("balance", ["loss", "bias"])
def test_the_layer_equals_a_loop_over_experts(balance: str) -> None:
    batch = random_batch(ROWS, LENGTH, 53, seed=1)
    eager = initial(balance)
    loss, weight, metrics = OBJECTIVE(eager, as_tensors(batch))
    (loss / weight).backward()
    wanted = expected(balance, batch)
    for name, parameter in eager.named_parameters():
        assert relative_error(parameter.grad.numpy(), wanted[name]) < TOLERANCE[torch.float32], name
    eager.zero_grad()
    assert ("cross_entropy" in metrics) == (balance == "loss")


def test_the_balance_term_of_a_router_that_prefers_nobody() -> None:
    """Every probability is 1 / E, so the term is the rate times C, whoever is chosen, of however many layers."""
    model = config("loss", rate=0.1).build()
    model.init_weights()
    with torch.no_grad():
        for layer in model.layers:
            layer.feed_forward.router.weight.zero_()
    loss, weight, metrics = OBJECTIVE(model, as_tensors(random_batch(ROWS, LENGTH, 53, seed=1)))
    assert (loss - metrics["cross_entropy"]).item() == pytest.approx(0.1 * CHOSEN * weight.item(), rel=1e-4)
    model.eval()
    assert OBJECTIVE(model, as_tensors(random_batch(ROWS, LENGTH, 53, seed=1)))[2] == {}


def check(balance: str, inner: str, policy: str, execution: str, mesh: Mesh, microbatches: int) -> None:
    looped, cut = EXECUTIONS[execution]
    with torch.device("meta"):
        module = config(balance, inner).build()
    rows = fields(ROWS, LENGTH)
    layers = Layers(Keep(POLICIES[policy]), looped)
    run = captured(module, KeepGradients(), rows, mesh, microbatches=microbatches, layers=layers, cut=cut)
    assert not run.program.step.notes
    state = run.state
    for step in (1, 2):  # counters start anew
        batch = random_batch(ROWS, LENGTH, 53, seed=1)
        state, _ = run.program(state, run.program.place_batch(batch), {"learning_rate": 0.0, "step": step})
        if step == 1:
            first = {
                name: np.asarray(value) for name, value in unstack(state, run.program.step, run.program.mesh).items()
            }
    after = {name: np.asarray(value) for name, value in unstack(state, run.program.step, run.program.mesh).items()}
    for name, wanted in expected(balance, batch).items():
        got = first[f"grad/{name}"][: wanted.shape[0]]
        assert relative_error(got, wanted) < TOLERANCE[torch.float32], f"gradient of {name}"
    counts = counts_of(initial(balance), batch)
    for i, wanted in enumerate(counts):
        prefix = f"buffer/layers.{i}.feed_forward"
        np.testing.assert_array_equal(first[f"{prefix}.tokens_per_expert"], wanted)
        np.testing.assert_array_equal(first[f"{prefix}.counted"], 0)
        assert wanted.sum() == ROWS * LENGTH * CHOSEN
        if balance == "bias":
            np.testing.assert_allclose(first[f"{prefix}.bias"], 0.1 * np.sign(wanted.mean() - wanted), rtol=1e-6)
            # The bias decides on the second step's choices; nothing else has changed.
            assert (after[f"{prefix}.tokens_per_expert"] != wanted).any() or i > 0
        else:
            np.testing.assert_array_equal(after[f"{prefix}.tokens_per_expert"], wanted)


WAYS = [
    *itertools.product(("unrolled",), ("save_all", "recompute_all"), (ONE, FOUR)),
    *itertools.product(("loop",), ("recompute_all",), (ONE, FOUR)),
    ("split", "recompute_all", FOUR),
]


@pytest.mark.parametrize(("execution", "policy", "mesh"), WAYS, ids=str)
def test_however_layers_run(execution: str, policy: str, mesh: Mesh) -> None:
    check("loss", "every_expert", policy, execution, mesh, microbatches=2)


@pytest.mark.parametrize("execution", ["unrolled", "loop"])
def test_balance_by_bias(execution: str) -> None:
    check("bias", "every_expert", "recompute_all", execution, FOUR, microbatches=2)


@pytest.mark.parametrize(("inner", "mesh"), list(itertools.product(INNER[1:], (ONE, FOUR))), ids=str)
def test_kernels(inner: str, mesh: Mesh) -> None:
    check("loss", inner, "save_matmuls", "loop", mesh, microbatches=1)


@pytest.mark.parametrize("inner", INNER)
def test_an_expert_that_nobody_chooses_has_zero_gradients(inner: str) -> None:
    with torch.device("meta"):
        module = config("bias", inner).build()
    run = captured(module, KeepGradients(), fields(ROWS, LENGTH), FOUR)
    state = dict(run.state)
    for i in range(2):
        name = f"buffer/layers.{i}.feed_forward.bias"
        state[name] = state[name].at[3].set(-100.0)
    batch = run.program.place_batch(random_batch(ROWS, LENGTH, 53, seed=1))
    state, _ = run.program(state, batch, {"learning_rate": 0.0, "step": 1})
    for i, projection in itertools.product(range(2), ("gate_proj", "up_proj", "down_proj")):
        assert np.asarray(state[f"buffer/layers.{i}.feed_forward.tokens_per_expert"])[3] == 0
        grad = np.asarray(state[f"grad/layers.{i}.feed_forward.{projection}"])
        per_expert = grad[: EXPERTS * (grad.shape[0] // EXPERTS)].reshape(EXPERTS, -1)
        assert not per_expert[3].any()
        assert (np.abs(per_expert).max(1) > 0).sum() == EXPERTS - 1


def test_evaluation_counts_nothing() -> None:
    with torch.device("meta"):
        module = config("loss").build()
    with simulated_device_mesh(FOUR) as mesh:
        step = capture_eval_step(simple_fsdp(module, mesh), OBJECTIVE, fields(ROWS, LENGTH), mesh)
    assert [value.name for value in step.outputs] == ["metric/loss_sum", "metric/weight"]
