"""What the TPU compiler makes of choices about layers: what is computed again stays so, and memory falls."""

from __future__ import annotations

import re

import jax
import pytest
import torch
from torch import Tensor, nn

from wholestep.graph.capture import capture_train_step
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep
from wholestep.graph.policies import offload_layer_inputs, recompute_all, save_all
from wholestep.graph.signature import Field
from wholestep.parallel import Mesh, Policy, simple_fsdp, simulated_device_mesh
from wholestep.xla.memory_use import MemoryUse, compile_for_tpu
from wholestep.xla.program import Program
from wholestep.xla.topologies import topology_mesh

MESH, DEPTH, ROWS, WIDTH = Mesh(fsdp=4), 4, 2**17, 512
LAYER_INPUT = ROWS // MESH.size * WIDTH * 2  # bytes, in bf16: more than fits the fast memory


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def objective(module: nn.Module, batch: dict[str, Tensor]):
    return module(batch["x"]).float().square().sum(), torch.ones(()) * ROWS, {}


def compiled(layers: Layers, slots_on_host: bool = False) -> jax.stages.Compiled:
    with torch.device("meta"):
        module = Model()
    batch = {"x": Field((ROWS, WIDTH), torch.bfloat16)}
    with simulated_device_mesh(MESH) as mesh:
        simple_fsdp(module, mesh, Policy(gather_dtype=torch.bfloat16))
        step = capture_train_step(module, objective, AdamW(), batch, mesh, layers=layers, slots_on_host=slots_on_host)
    return compile_for_tpu(Program(step, topology_mesh("v6e:2x2", MESH)).lower())


def products(program: jax.stages.Compiled) -> int:
    return len(re.findall(r"= \S+ (?:dot|convolution)\(", program.as_text()))


@pytest.mark.parametrize("looped", [False, True], ids=["laid out", "loop"])
def test_what_is_computed_again_stays_so_and_frees_memory(looped: bool) -> None:
    saved, again = (compiled(Layers(Keep(policy), looped)) for policy in (save_all, recompute_all))
    assert products(again) == products(saved) + (1 if looped else DEPTH)  # the gradients need `up(x)`, not `down`
    fallen = MemoryUse.of(saved).temporaries - MemoryUse.of(again).temporaries
    assert fallen > (DEPTH - 1) * LAYER_INPUT  # of each layer its hidden activations, twice as wide


@pytest.mark.parametrize("looped", [False, True], ids=["laid out", "loop"])
def test_offloaded_layer_inputs_are_in_host_memory(looped: bool) -> None:
    kept, moved = (
        MemoryUse.of(compiled(Layers(Keep(policy), looped))) for policy in (recompute_all, offload_layer_inputs)
    )
    layers = DEPTH if looped else DEPTH - 1  # laid out, the first one's input is the batch, which is there anyway
    assert (kept.host_temporaries, moved.host_temporaries) == (0, layers * LAYER_INPUT)
    if looped:  # of four layers laid out the compiler fetches all inputs back early: the device holds them after all
        assert moved.temporaries < kept.temporaries


def test_gathers_and_scatters_are_in_the_loops_and_stacked_state_stays_sharded() -> None:
    text = compiled(Layers(Keep(recompute_all), looped=True)).as_text()
    collectives: dict[str, list[str]] = {}
    computation = ""
    for line in text.splitlines():
        if start := re.match(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            computation = start[1]
        # A scatter may be an all-reduce and a slice: the compiler's choice.
        if found := re.search(r"= [a-z0-9]+\[\S+ (all-gather|reduce-scatter|all-reduce)(?:-start)?\(", line):
            collectives.setdefault(computation, []).append(found[1])
    assert collectives.keys() == set(re.findall(r"body=%?([\w.\-]+)", text))
    forward, backward = sorted(collectives.values(), key=len)
    assert forward == ["all-gather"] * 2 and backward.count("all-gather") == 2 and len(backward) == 4
    stacks = {tuple(map(int, found)) for found in re.findall(r"f32\[(\d+),(\d+),(\d+)\]", text)}
    elements = {a * b * c for a, b, c in stacks if a == DEPTH}
    whole = DEPTH * 2 * WIDTH * WIDTH
    assert whole // MESH.size in elements and max(elements) < whole


def test_the_optimizer_on_the_host_frees_the_device() -> None:
    on_device, on_host = (
        compiled(Layers(Keep(recompute_all), looped=True), slots_on_host).memory_analysis()
        for slots_on_host in (False, True)
    )
    slots = 2 * DEPTH * 4 * WIDTH * WIDTH * 4 // MESH.size
    assert on_device.argument_size_in_bytes - on_host.argument_size_in_bytes == slots
    assert on_host.host_argument_size_in_bytes == slots
