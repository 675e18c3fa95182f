"""A run's first state: the same on every mesh, made shard by shard."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from graph.small_step import Stack, capture, random_rows
from support import TOLERANCE, relative_error, tiny_config
from torch import Tensor, nn
from xla.small_program import run_step, start

from wholestep.errors import GraphError
from wholestep.graph.capture import Field, capture_eval_step
from wholestep.graph.initialize import capture_initializers
from wholestep.models.objectives import next_token
from wholestep.parallel import Mesh, simple_fsdp, simulated_device_mesh
from wholestep.xla.compile_cache import count_compiles
from wholestep.xla.devices import device_mesh
from wholestep.xla.initialize import initialize_state
from wholestep.xla.program import State

MESHES = [Mesh(fsdp=2), Mesh(fsdp=8), Mesh(replicate=2, fsdp=4)]


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def first_state(build: Callable[[], nn.Module], mesh: Mesh, seed: int = 0) -> State:
    """The first state of a train step of `build()`, without its program (so that any operator may be in it)."""
    module = on_meta(build)
    initializers = capture_initializers(module)
    return initialize_state(capture(module, mesh), initializers, device_mesh(mesh), seed)


def decoder_state(mesh: Mesh, seed: int = 0) -> State:
    """The parameters and buffers of the tiny decoder."""
    module = on_meta(tiny_config().build)
    initializers = capture_initializers(module)
    batch = {name: Field((8, 4), torch.int64) for name in ("tokens", "labels", "positions", "segment_ids")}
    with simulated_device_mesh(mesh) as simulated:
        step = capture_eval_step(simple_fsdp(module, simulated), next_token, batch, simulated)
    return initialize_state(step, initializers, device_mesh(mesh), seed)


@pytest.fixture(scope="module")
def on_one_device() -> State:
    return decoder_state(Mesh())


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_mesh_starts_from_the_same_bits(mesh: Mesh, on_one_device: State) -> None:
    state = decoder_state(mesh)
    assert list(state) == list(on_one_device)
    for name, array in state.items():
        whole, expected = np.asarray(array), np.asarray(on_one_device[name])
        assert whole[: len(expected)].tobytes() == expected.tobytes(), name
        assert not whole[len(expected) :].any(), f"{name} has something in its padding"


def test_each_device_holds_its_shard(on_one_device: State) -> None:
    state = decoder_state(Mesh(replicate=2, fsdp=4))
    for name, array in state.items():
        split = 1 if name.startswith("buffer/") else 4
        assert {shard.data.shape[0] for shard in array.addressable_shards} == {array.shape[0] // split}, name


def test_another_seed_gives_other_draws(on_one_device: State) -> None:
    for name, array in decoder_state(Mesh(), seed=1).items():
        constant = "norm" in name or name.startswith("buffer/")
        equal = np.asarray(array) == np.asarray(on_one_device[name])
        assert equal.all() if constant else equal.mean() < 0.01, name


def test_layers_differ(on_one_device: State) -> None:
    drawn = [name for name in on_one_device if "layers.0." in name and "norm" not in name]
    assert drawn
    for name in drawn:
        first, second = (np.asarray(on_one_device[name.replace("layers.0", f"layers.{i}")]) for i in (0, 1))
        assert (first == second).mean() < 0.01, name


def test_draws_have_their_width(on_one_device: State) -> None:
    embeddings = np.asarray(on_one_device["parameter/embed_tokens.weight"])
    assert embeddings.std() == pytest.approx(0.02, rel=0.1)
    assert abs(embeddings.mean()) < 0.002
    assert (np.asarray(on_one_device["parameter/norm.weight"]) == 1).all()


def linears(count: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(nn.Linear(6, 6) for _ in range(count)))


def test_equal_layers_share_an_executable() -> None:
    programs = []
    for count in (1, 2, 5):
        with count_compiles() as counts:
            first_state(linears(count), Mesh(fsdp=2))
        programs.append(counts.programs)
    assert programs[1] == programs[2], "the number of programs grows with depth"


class Normalized(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 64), nn.LayerNorm(64), nn.Linear(64, 3, bias=False))


def test_plain_pytorch_layers_start_as_pytorch_starts_them() -> None:
    state = first_state(Normalized, Mesh(fsdp=8))
    assert (np.asarray(state["parameter/1.weight"]) == 1).all()
    assert not np.asarray(state["parameter/1.bias"]).any()
    for name, inputs in {"0.weight": 6, "0.bias": 6, "2.weight": 64}.items():
        bound, values = 1 / math.sqrt(inputs), np.asarray(state[f"parameter/{name}"])
        values = values[:3] if name == "2.weight" else values
        assert np.abs(values).max() <= bound
        assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.2), name
    assert not np.asarray(state["exp_avg/0.weight"]).any()


class Shared(nn.Module):
    """Two parameters that start from one draw."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.empty(4)), nn.Parameter(torch.empty(4))

    @torch.no_grad()
    def init_weights(self) -> None:
        draw = torch.empty_like(self.a).normal_()
        self.a.copy_(draw)
        self.b.copy_(2 * draw)


def test_two_tensors_of_one_draw_are_an_error() -> None:
    with pytest.raises(GraphError, match="a and b are initialized from one random draw; draw for each"):
        capture_initializers(Shared())


class Scaled(Stack):
    """A stack with a parameter that has no dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(()))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


@pytest.mark.parametrize("mesh", [Mesh(), *MESHES], ids=str)
def test_a_scalar_parameter_trains(mesh: Mesh) -> None:
    run = start(Scaled(), mesh)
    scale = np.array(run.state["parameter/scale"])
    assert scale.tolist() == [1.5] + [0.0] * (mesh.fsdp - 1)
    reference = Scaled()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            stored = np.array(run.state[f"parameter/{name}"])
            parameter.copy_(torch.from_numpy(stored)[: parameter.shape[0] if parameter.dim() else 1].view_as(parameter))
    batch = {name: torch.from_numpy(rows) for name, rows in random_rows(8, seed=1).items()}
    loss = (reference(batch["x"]).square().sum(-1) * batch["weight"]).sum() / batch["weight"].sum()
    loss.backward()

    state, metrics = run_step(run)
    expected = np.asarray([parameter.grad.norm().item() for parameter in reference.parameters()])
    assert relative_error(np.asarray(metrics["grad_norms"]), expected) < TOLERANCE[torch.float32]
    after = np.array(state["parameter/scale"])
    assert after[0] == pytest.approx(1.5 * (1 - 0.1 * 0.1) - 0.1 * np.sign(reference.scale.grad.item()), rel=1e-5)
    assert not after[1:].any()
