"""What lies in memory, and what for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax
from plan.compiled_program import Program, Spec, compiled, lowered
from plan.hlo_text import module

from wholestep.parallel import Mesh
from wholestep.plan.assignment import Assignment, Placed
from wholestep.plan.costs import costs, loops, walk
from wholestep.plan.hlo import HOST
from wholestep.plan.memory import MemoryReader
from wholestep.plan.report import Kind
from wholestep.xla.topologies import topology_chip, topology_mesh


def reader() -> MemoryReader:
    """Of a step of two layers, whose weights, `[2, 64, 32]`, are split over 4 devices."""
    scope = 'metadata={{op_name="jit(run)/layers.0[a.py,7,{}]/x"}}'
    program = module(
        f"""%w = f32[2,16,32]{{2,1,0}} parameter(0), sharding={{devices=[1,4,1]<=[4]}}, \
metadata={{op_name="state[\\'parameter/layers.0:2:1.up.weight\\']"}}
        %m = f32[2,16,32]{{2,1,0}} parameter(1), metadata={{op_name="state[\\'exp_avg/layers.0:2:1.up.weight\\']"}}
        %x = s32[8]{{0}} parameter(2), metadata={{op_name="batch[\\'batch/tokens\\']"}}
        %stack = bf16[2,8,99]{{2,1,0}} custom-call(), custom_call_target="AllocateBuffer"
        %t = (bf16[2,8,99]{{2,1,0}}) tuple(%stack)
        %loop = (bf16[2,8,99]{{2,1,0}}) while(%t), condition=%goes_on, body=%body
        %whole = bf16[64,32]{{1,0}} fusion(%w), kind=kLoop, calls=%inside
        %other = bf16[7,7]{{1,0}} all-gather(%x), {scope.format("_c10d.all_gather")}
        %joined.1 = f32[64,32]{{1,0}} all-gather(%x)
        %dw = f32[64,32]{{0,1}} fusion(%w), kind=kOutput, calls=%inside
        %part = f32[5,5]{{0,1}} fusion(%w), kind=kOutput, calls=%inside, {scope.format("_c10d.reduce_scatter")}
        %shard = f32[1,16,32]{{2,1,0}} fusion(%w), kind=kLoop, calls=%inside
        ROOT %tmp = bf16[3,3]{{1,0}} negate(%other), {scope.format("aten.neg")}""",
        "inside\nROOT %i = f32[] parameter(0)",
        "goes_on\n%c = (bf16[2,8,99]{2,1,0}) parameter(0)\nROOT %p = pred[] constant(false)",
        "body\nROOT %b = (bf16[2,8,99]{2,1,0}) parameter(0)",
    )
    shapes = {
        each.name: each.shape for computation in program.computations.values() for each in computation.instructions
    }
    lives = {
        "stack": (0, 1000, 1, 3),
        "b": (0, 1000, 2, 2),
        "loop": (0, 1000, 2, 5),
        "whole": (1000, 400, 3, 4),
        "other": (1400, 70, 4, 5),
        "dw": (2000, 800, 4, 5),
        "part": (3000, 30, 5, 6),
        "tmp": (3100, 5, 6, 6),
        "shard": (0, 50, 7, 7),
        "joined.1": (60, 5, 7, 7),
    }
    placed = tuple(
        Placed(name, "{0}" if name in ("loop", "b") else "{}", size, offset, first, last, shapes[name].strip("()"))
        for name, (offset, size, first, last) in lives.items()
    )
    order = ("w", "stack", "loop", "whole", "other", "dw", "tmp")
    return MemoryReader(program, Assignment({0: 4096, 1: 4096, 2: 512}, 64, 4000, placed, order))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("stack", "activations"),
        ("b", "activations"),
        ("loop", "activations"),
        ("whole", "gathered weights"),
        ("other", "gathered weights"),
        ("dw", "gradients"),
        ("part", "gradients"),
        ("tmp", "temporaries"),
        ("shard", "gradients"),
        ("joined.1", "gathered weights"),
    ],
)
def test_what_a_buffer_is_for(name: str, kind: Kind) -> None:
    found = reader()
    (placed,) = (each for each in found.assignment.placed if each.instruction == name)
    assert found.kind(placed) == kind


def test_arguments_are_what_their_names_say() -> None:
    assert [(each.name, each.size, each.kind) for each in reader().arguments] == [
        ("parameter/layers.0:2:1.up.weight", 4096, "parameters"),
        ("exp_avg/layers.0:2:1.up.weight", 4096, "optimizer state"),
        ("batch/tokens", 512, "batch"),
    ]


def test_the_peak_is_where_most_is_in_use() -> None:
    memory = reader().memory(available=10**6, host=7, code=0, moments={"stack": 1.0, "loop": 2.0, "other": 5.0})
    assert memory.by_kind == {
        "parameters": 4096,
        "optimizer state": 4096,
        "activations": 1000,
        "gradients": 800,
        "batch": 512,
        "gathered weights": 470,
        "temporaries": 64,
    }
    assert (memory.needed, memory.host, memory.fits) == (4096 + 4096 + 512 + 64 + 4000, 7, True)
    largest = [(buffer.name, buffer.size, buffer.module, buffer.line) for buffer in memory.largest]
    assert largest[2:6] == [
        ("loop", 1000, "", ""),
        ("dw", 800, "", ""),
        ("batch/tokens", 512, "", ""),
        ("whole", 400, "", ""),
    ]
    assert largest[6] == ("other", 70, "layers.0", "a.py:7")
    assert largest[0][2] == "layers.0:2:1.up"
    fixed = 4096 + 4096 + 512 + 64
    assert [(point.at, sum(point.by_kind.values()) - fixed) for point in memory.curve] == [
        (0.0, 1000),
        (2.0, 1000 + 400),
        (2.0, 1000 + 400 + 70 + 800),
        (5.0, 1000 + 70 + 800 + 30),
        (5.0, 30 + 5),
        (5.0, 50 + 5),
        (5.0, 0),
    ]


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    return topology_mesh("v6e:2x2", Mesh(fsdp=4))


def probabilities(x: Array, w: Array) -> Array:
    return jax.nn.softmax((x @ w).astype(jnp.float32), axis=-1)


def peak(program: Program) -> int:
    memory = MemoryReader(program.module, program.assignment).memory(available=0, host=0, code=0, moments={})
    return sum(memory.by_kind.values())


def test_the_kinds_add_up_to_the_compilers_peak(mesh: jax.sharding.Mesh) -> None:
    found = compiled(lowered(probabilities, mesh, Spec(), ((8192, 256), Spec()), ((256, 16384), Spec())))
    assert found.analysis.peak_memory_in_bytes > 500 * 2**20
    assert peak(found) == pytest.approx(found.analysis.peak_memory_in_bytes, abs=2**16)


def test_residuals_on_the_host_are_there_and_back_once(mesh: jax.sharding.Mesh) -> None:
    layers, rows, width = 4, 1024, 256

    def train(w: Array, x: Array) -> Array:
        def forward(x: Array, w: Array) -> tuple[Array, Array]:
            return jnp.tanh(x @ w), jax.device_put(x, jax.memory.Space.Host)

        def backward(g: Array, saved: tuple[Array, Array]) -> tuple[Array, Array]:
            w, x = saved[0], jax.device_put(saved[1], jax.memory.Space.Device)
            return g @ w.T, x.T @ g

        y, inputs = lax.scan(forward, x, w)
        return lax.scan(backward, y, (w, inputs), reverse=True)[1]

    found = compiled(lowered(train, mesh, Spec(), ((layers, width, width), Spec()), ((rows, width), Spec())))
    residuals = layers * rows * width * 2
    assert found.analysis.host_temp_size_in_bytes == residuals
    schedule = costs(found.module, mesh, topology_chip("v6e:2x2"), {})
    assert sum(cost.moved.get(HOST, 0) * times for cost, times in walk(schedule)) == 2 * residuals
    assert all(cost.work == "host" for cost, _ in walk(schedule) if cost.moved.get(HOST))
    assert all(loop.known for loop in loops(schedule))
