"""What a compiled step is (donated, aliased, no way back to Python) and what it refuses."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
import torch
from graph.small_step import Stack, random_rows
from support import TOLERANCE, Captured, captured, fields, random_batch, tiny_config
from torch import Tensor, nn
from xla.small_program import run_step, start

from wholestep.errors import LoweringError
from wholestep.graph.optimizer import AdamW
from wholestep.graph.step import StepGraph, graphs
from wholestep.parallel import Mesh
from wholestep.xla.compile_cache import count_compiles
from wholestep.xla.program import State

LENGTH = 12
CASES = {"fsdp": (Mesh(fsdp=8), 2), "hybrid": (Mesh(replicate=2, fsdp=4), 1)}


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest) -> Captured:
    """The tiny model's step; the first has a loop over two microbatches."""
    mesh, microbatches = CASES[request.param]
    with torch.device("meta"):
        model = tiny_config().build()
    return captured(model, AdamW(), fields(16, LENGTH), mesh, microbatches=microbatches)


def bits(state: State) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in state.items()}


def donated(step: StepGraph) -> list[str]:
    replaced = {value.name for value in step.outputs}
    return [value.name for value in step.state() if value.name in replaced]


def test_every_replaced_buffer_is_aliased(run: Captured) -> None:
    step, executable = run.program.step, run.program.executable
    header = executable.as_text().splitlines()[0]
    pairs = re.findall(r"\{(\d+)\}: \((\d+), \{\}, (?:may|must)-alias\)", header)
    names = donated(step)
    assert {value.name for value in step.state() if value.kind != "buffer"} == set(names)
    assert len(pairs) == len(names)
    local = [value.local_shape(step.axes) for value in step.state() if value.name in names]
    assert executable.memory_analysis().alias_size_in_bytes == sum(4 * int(np.prod(shape)) for shape in local)


def test_the_program_never_goes_back_to_the_host(run: Captured) -> None:
    text = run.program.executable.as_text()
    targets = set(re.findall(r'custom_call_target="([^"]+)"', text))
    assert not {target for target in targets if "callback" in target or "python" in target}
    assert not re.findall(r" (?:infeed|outfeed|send|recv)\(", text)


def test_every_node_is_needed(run: Captured) -> None:
    for module in graphs(run.program.step.module):
        dead = [node for node in module.graph.nodes if not node.users and node.op not in ("placeholder", "output")]
        assert not dead


def test_fp32_products_are_computed_in_fp32(run: Captured) -> None:
    products = re.findall(r"stablehlo\.dot_general.*", run.program.lower().as_text())
    assert products
    assert all("precision = [HIGHEST, HIGHEST]" in product for product in products)


def test_several_steps_are_one_compilation() -> None:
    run = start(Stack(), Mesh(fsdp=2))
    state, _ = run_step(run)
    with count_compiles() as counts:
        for step in (2, 3):
            state, _ = run_step(Captured(run.program, state), step=step)
    assert counts.programs == 0


def test_replaced_state_is_used_up_and_the_rest_is_kept() -> None:
    module = Stack()
    module.first.weight.requires_grad_(False)
    run = start(module, Mesh(fsdp=2))
    run_step(run)
    assert {name for name, array in run.state.items() if not array.is_deleted()} == {"parameter/first.weight"}


def test_frozen_parameters_come_out_unchanged() -> None:
    module = Stack()
    module.first.weight.requires_grad_(False)
    module.last.bias.requires_grad_(False)
    run = start(module, Mesh(replicate=2, fsdp=4))
    before = bits(run.state)
    assert "exp_avg/first.weight" not in before
    state, metrics = run_step(run)
    after = bits(state)
    changed = {name for name, value in before.items() if value != after[name]}
    assert {name for name in before if name not in changed} == {"parameter/first.weight", "parameter/last.bias"}
    assert metrics["grad_norms"].shape == (3,)


@pytest.mark.parametrize("poison", [np.inf, np.nan])
def test_a_step_that_is_not_finite_leaves_the_state_as_it_was(poison: float) -> None:
    run = start(Stack(), Mesh(replicate=2, fsdp=4))
    state, _ = run_step(run)
    weight = np.array(state["parameter/last.weight"])
    weight[0, 0] = poison
    state["parameter/last.weight"] = jax.device_put(weight, state["parameter/last.weight"].sharding)
    before = bits(state)
    after, metrics = run_step(Captured(run.program, state), step=2)
    assert not np.isfinite(metrics["loss"])
    assert bits(after) == before


class Constants(Stack):
    def __init__(self, constant: Tensor) -> None:
        super().__init__()
        self.constant = constant.tolist(), constant.dtype

    def forward(self, x: Tensor) -> Tensor:
        values, dtype = self.constant
        return super().forward(x) * torch.tensor(values, dtype=dtype).view(3)


def loss_in_pytorch(module: nn.Module, state: State) -> float:
    """The first step's loss, from the parameters in `state`."""
    batch = {name: torch.from_numpy(rows) for name, rows in random_rows(8, seed=1).items()}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(np.array(state[f"parameter/{name}"])))
        losses = module(batch["x"]).square().sum(-1) * batch["weight"]
    return float(losses.sum() / batch["weight"].sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_constants_of_the_forward_pass(dtype: torch.dtype) -> None:
    constant = torch.tensor([1, 2, 3], dtype=dtype)
    run = start(Constants(constant), Mesh())
    expected = loss_in_pytorch(Constants(constant), run.state)
    _, metrics = run_step(run)
    assert float(metrics["loss"]) == pytest.approx(expected, rel=TOLERANCE[torch.float32])


def test_a_constant_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(LoweringError, match="does not fit int32"):
        run_step(start(Constants(torch.tensor([1, 2, 2**40])), Mesh()))


def test_batch_fields_must_be_the_captured_ones(run: Captured) -> None:
    batch = random_batch(16, LENGTH, 53, seed=0)
    del batch["labels"]
    with pytest.raises(ValueError, match=r"takes batch fields \['labels', .*\], got \['positions', "):
        run.program.place_batch(batch)
    with pytest.raises(ValueError, match=r"got \['labels', 'noise', "):
        run.program.place_batch({**random_batch(16, LENGTH, 53, seed=0), "noise": np.zeros(1)})


def test_a_batch_of_another_shape_is_an_error(run: Captured) -> None:
    expected = r"batch field 'tokens' has shape \(16, 13\); the step was captured for \(16, 12\)"
    with pytest.raises(ValueError, match=expected):
        run.program.place_batch(random_batch(16, LENGTH + 1, 53, seed=0))


def test_a_token_that_does_not_fit_is_an_error(run: Captured) -> None:
    batch = random_batch(16, LENGTH, 53, seed=0)
    batch["labels"][3, 4] = 2**31
    with pytest.raises(ValueError, match="labels: a value does not fit int32"):
        run.program.place_batch(batch)
