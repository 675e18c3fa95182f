"""Programs that are really compiled, for each chip: FLOPs, trips and bytes against formulas."""

from __future__ import annotations

from collections import Counter

import jax.numpy as jnp
import pytest
from jax import Array, lax
from plan.compiled_program import Spec, compiled, lowered

from wholestep.parallel import Mesh
from wholestep.plan.costs import Schedule, costs, loops, walk
from wholestep.xla.chips import CHIPS, Chip
from wholestep.xla.topologies import topology_chip, topology_mesh

LAYERS, WIDTH, ROWS = 5, 512, 256
WEIGHT = WIDTH * WIDTH * 2  # bytes


def step(w: Array, x: Array) -> tuple[Array, Array]:
    """Layers of gathered weights; a gradient that is scattered and added up; something passed on."""

    def layer(x: Array, shard: Array) -> tuple[Array, None]:
        whole = lax.all_gather(shard, "fsdp", axis=0, tiled=True)
        return jnp.tanh(x @ whole), None

    y, _ = lax.scan(layer, x, w)
    gradient = lax.psum_scatter(y.T @ x, "fsdp", tiled=True)
    return lax.psum(gradient, "replicate"), lax.ppermute(y, "fsdp", [(0, 1), (1, 0)])


def traffic(schedule: Schedule) -> dict[tuple[str, str, tuple[str, ...]], int]:
    """Operation, network and axes -> bytes that a device sends."""
    sent: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    for cost, times in walk(schedule):
        if cost.collective is not None:
            group = cost.collective.group
            sent[cost.collective.operation, group.network, group.axes] += cost.collective.size * times
    return dict(sent)


def read(topology: str, mesh: Mesh, slices: int = 1) -> Schedule:
    devices = topology_mesh(topology, mesh, slices)
    rows = Spec(("replicate", "fsdp"))
    inputs = ((LAYERS, WIDTH, WIDTH), Spec(None, "fsdp")), ((ROWS * mesh.size, WIDTH), rows)
    program = compiled(lowered(step, devices, (Spec("fsdp"), rows), *inputs))
    return costs(program.module, devices, topology_chip(topology), {})


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_figures_of_a_compiled_program_are_those_of_its_formulas(chip: Chip) -> None:
    fsdp = 2 * chip.devices
    schedule = read(chip.topologies[0], Mesh(replicate=2, fsdp=fsdp))
    assert [(loop.trips, loop.known) for loop in loops(schedule)] == [(LAYERS, True)]
    assert sum(cost.flops * times for cost, times in walk(schedule)) == (LAYERS + 1) * 2 * ROWS * WIDTH * WIDTH
    assert traffic(schedule) == {
        ("all-gather", "ICI", ("fsdp",)): LAYERS * WEIGHT * (fsdp - 1) // fsdp,
        ("reduce-scatter", "ICI", ("fsdp",)): WEIGHT * (fsdp - 1) // fsdp,
        ("all-reduce", "ICI", ("replicate",)): WEIGHT // fsdp,  # 2 (n-1)/n of a shard, of n = 2
        ("collective-permute", "ICI", ("fsdp",)): ROWS * WIDTH * 2,
    }


@pytest.mark.parametrize(("topology", "fsdp"), [("v6e:2x2", 4), ("tpu7x:2x2x1", 8)])
def test_replicas_in_other_slices_add_up_over_the_data_center_network(topology: str, fsdp: int) -> None:
    schedule = read(topology, Mesh(replicate=2, fsdp=fsdp), slices=2)
    assert traffic(schedule) == {
        ("all-gather", "ICI", ("fsdp",)): LAYERS * WEIGHT * (fsdp - 1) // fsdp,
        ("reduce-scatter", "ICI", ("fsdp",)): WEIGHT * (fsdp - 1) // fsdp,
        ("all-reduce", "DCN", ("replicate",)): WEIGHT // fsdp,
        ("collective-permute", "ICI", ("fsdp",)): ROWS * WIDTH * 2,
    }
    started = {cost.instruction.name for cost, _ in walk(schedule) if cost.starts}
    assert started == {cost.awaits for cost, _ in walk(schedule) if cost.awaits is not None}


def test_an_axis_that_crosses_slices_has_a_part_on_each_network() -> None:
    sent = traffic(read("v6e:2x2", Mesh(fsdp=8), slices=2))
    assert sent["all-gather", "DCN", ("fsdp",)] == LAYERS * WEIGHT // 8  # a shard, to the other slice
    assert sent["all-gather", "ICI", ("fsdp",)] == LAYERS * WEIGHT * 3 // 4
