"""Who takes part in collectives, and what travels."""

from __future__ import annotations

import functools

import jax
import pytest
from plan.hlo_text import find, module

from wholestep.parallel import Mesh
from wholestep.plan.network import Collective, collective
from wholestep.xla.topologies import topology_chip, topology_mesh

SIZE = 1024 * 128 * 2


@functools.cache
def mesh_of(topology: str, mesh: Mesh, slices: int = 1) -> jax.sharding.Mesh:
    return topology_mesh(topology, mesh, slices)


def sent(line: str, topology: str, mesh: Mesh, slices: int = 1) -> Collective:
    """By a collective of an array of `SIZE` bytes."""
    program = module(f"%x = bf16[1024,128]{{1,0}} parameter(0)\n%token = token[] after-all()\nROOT %c = {line}")
    found = collective(program, *find(program, "c"), mesh_of(topology, mesh, slices), topology_chip(topology))
    assert found is not None
    return found


FSDP, REPLICATE, BOTH = ("fsdp",), ("replicate",), ("replicate", "fsdp")


@pytest.mark.parametrize(
    ("groups", "axes", "size"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", FSDP, 4),
        ("{{0,4},{1,5},{2,6},{3,7}}", REPLICATE, 2),
        ("{{0,1,2,3,4,5,6,7}}", BOTH, 8),
        ("{{0,1},{2,3},{4,5},{6,7}}", FSDP, 2),
        ("{{0,5},{1,4},{2,7},{3,6}}", BOTH, 2),
        ("[2,4]<=[8]", FSDP, 4),
        ("[4,2]<=[2,4]T(1,0)", REPLICATE, 2),
        ("[1,8]<=[8]", BOTH, 8),
        ("{}", BOTH, 8),
    ],
)
def test_groups_lie_along_axes_of_the_mesh(groups: str, axes: tuple[str, ...], size: int) -> None:
    group = sent(f"bf16[1024,128] all-reduce(%x), replica_groups={groups}", "v6e:2x4", Mesh(replicate=2, fsdp=4)).group
    on_both = axes == BOTH and size == 2  # a diagonal is no product of axes
    assert (group.axes, group.size) == (() if on_both else axes, size)
    assert (group.network, group.slices) == ("ICI", 1)


@pytest.mark.parametrize(
    ("line", "operation", "whole", "size"),
    [
        ("bf16[4096,128] all-gather(%x), dimensions={0}", "all-gather", 4 * SIZE, 3 * SIZE),
        ("(bf16[1024,128], bf16[4096,128]) all-gather-start(%x)", "all-gather", 4 * SIZE, 3 * SIZE),
        ("bf16[256,128] reduce-scatter(%x), dimensions={0}", "reduce-scatter", SIZE, SIZE * 3 // 4),
        ("bf16[1024,128] all-reduce(%x)", "all-reduce", SIZE, SIZE * 3 // 2),
        ("(bf16[1024,128], bf16[1024,128]) all-reduce(%x, %x)", "all-reduce", 2 * SIZE, 3 * SIZE),
        ("bf16[1024,128] all-to-all(%x)", "all-to-all", SIZE, SIZE * 3 // 4),
    ],
)
def test_what_a_device_sends(line: str, operation: str, whole: int, size: int) -> None:
    found = sent(f"{line}, replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}", "v6e:2x4", Mesh(replicate=2, fsdp=4))
    assert (found.operation, found.whole, found.size) == (operation, whole, size)


@pytest.mark.parametrize(("pairs", "axes"), [("{{0,1},{1,2},{2,3},{3,0}}", FSDP), ("{{0,4},{4,0}}", REPLICATE)])
def test_a_permutation_sends_everything_once(pairs: str, axes: tuple[str, ...]) -> None:
    line = f"(bf16[1024,128], bf16[1024,128], u32[], u32[]) collective-permute-start(%x), source_target_pairs={pairs}"
    found = sent(line, "v6e:2x4", Mesh(replicate=2, fsdp=4))
    assert (found.operation, found.size, found.group.axes) == ("collective-permute", SIZE, axes)


def between(kind: str, target: str) -> str:
    return (
        "(bf16[1024,128], u32[], token[]) send(%x, %token), channel_id=2, is_host_transfer=true, frontend_attributes={"
        f'_xla_host_transfer_rendezvous="psum.7_0",_xla_megascale_target={target},_xla_megascale_transfer_type="{kind}"}}'
    )


@pytest.mark.parametrize(
    ("kind", "target", "operation", "axes", "slices", "whole", "size"),
    [
        ("ALL_REDUCE", '"{1,2,3,4}x{0:3}"', "all-reduce", BOTH, 4, SIZE, 2 * SIZE * 3 // 4),
        ("ALL_REDUCE", "{{100000,300000},{200000,400000}}", "all-reduce", REPLICATE, 2, SIZE, SIZE),
        ("ALL_GATHER", "{{100000,200000},{300000,400000}}", "all-gather", FSDP, 2, 2 * SIZE, SIZE),
        ("REDUCE_SCATTER", "{{100000,200000},{300000,400000}}", "reduce-scatter", FSDP, 2, SIZE, SIZE // 2),
        ("ALL_TO_ALL", "{{100000,300000},{200000,400000}}", "all-to-all", REPLICATE, 2, SIZE, SIZE // 2),
        ("ONE_TO_ONE", "{{100002->300002},{300002->100002}}", "collective-permute", REPLICATE, 2, SIZE, SIZE),
    ],
)
def test_transfers_between_slices_are_collectives_over_the_data_center_network(
    kind: str, target: str, operation: str, axes: tuple[str, ...], slices: int, whole: int, size: int
) -> None:
    found = sent(between(kind, target), "v6e:2x2", Mesh(replicate=2, fsdp=8), slices=4)
    assert (found.operation, found.whole, found.size) == (operation, whole, size)
    assert (found.group.axes, found.group.slices, found.group.chips, found.group.network) == (axes, slices, 1, "DCN")


@pytest.mark.parametrize("groups", ["{{0,1,2,3}}", "[1,4]<=[4]", "{}"])
def test_a_program_of_several_slices_numbers_the_devices_of_one(groups: str) -> None:
    line = f"bf16[1024,128] all-reduce(%x), replica_groups={groups}"
    group = sent(line, "v6e:2x2", Mesh(replicate=2, fsdp=8), slices=4).group
    assert (group.axes, group.size, group.network) == (FSDP, 4, "ICI")


def test_what_goes_to_the_host_is_no_collective() -> None:
    program = module("%x = f32[8]{0} parameter(0)\nROOT %c = (f32[8], u32[], token[]) send(%x), is_host_transfer=true")
    mesh = mesh_of("v6e:2x2", Mesh(fsdp=4))
    assert collective(program, *find(program, "c"), mesh, topology_chip("v6e:2x2")) is None


@pytest.mark.parametrize(
    ("topology", "mesh", "chips", "links", "hops"),
    [
        pytest.param("v6e:2x4", Mesh(fsdp=8), 8, 2, 1 + 3, id="2-d, open"),
        pytest.param("v6e:4x4", Mesh(fsdp=16), 16, 2, 3 + 3, id="2-d, open, though of 4"),
        pytest.param("v6e:16x16", Mesh(fsdp=256), 256, 4, 8 + 8, id="2-d, closed"),
        pytest.param("v5p:4x4x4", Mesh(fsdp=64), 64, 6, 2 + 2 + 2, id="3-d, closed"),
        pytest.param("v5p:2x2x1", Mesh(fsdp=4), 4, 2, 1 + 1, id="3-d, open"),
        pytest.param("tpu7x:2x2x1", Mesh(fsdp=8), 4, 2, 1 + 1, id="two devices a chip"),
    ],
)
def test_links_and_hops_of_a_whole_slice(topology: str, mesh: Mesh, chips: int, links: int, hops: int) -> None:
    group = sent("bf16[1024,128] all-reduce(%x), replica_groups={}", topology, mesh).group
    assert (group.size, group.chips, group.links, group.hops) == (mesh.size, chips, links, hops)


def test_an_all_reduce_with_the_slice_that_is_kept_runs_as_a_reduce_scatter() -> None:
    program = module(
        "%x = bf16[1024,128]{1,0} parameter(0)\nROOT %c = bf16[256,128]{1,0} fusion(%x), calls=%all-reduce-scatter.1",
        """all-reduce-scatter.1
        %p = bf16[1024,128]{1,0} parameter(0)
        %zero = u32[] constant(0)
        %sum = bf16[1024,128]{1,0} all-reduce(%p), replica_groups={{0,1,2,3}}
        ROOT %part = bf16[256,128]{1,0} dynamic-slice(%sum, %zero, %zero), dynamic_slice_sizes={256,128}""",
    )
    found = collective(program, *find(program, "c"), mesh_of("v6e:2x2", Mesh(fsdp=4)), topology_chip("v6e:2x2"))
    assert found is not None
    assert (found.operation, found.whole, found.size) == ("reduce-scatter", SIZE, SIZE * 3 // 4)


@pytest.mark.parametrize(
    ("algorithm", "links"),
    [
        ("", 4),
        ('"emitter":"1DRing"', 2),
        (r'"debug":"\nStrategyRing{colors:1 phases:1}"', 2),
        (r'"debug":"\nStrategySubgroupND{colors:2 phases:2}"', 4),
        (r'"debug":"\nStrategyND{colors:3 phases:3}"', 4),
        (r'"debug":"\nUniDirection1DRingStrategy{colors:2 phases:1}"', 2),
    ],
)
def test_links_are_those_that_the_algorithm_uses(algorithm: str, links: int) -> None:
    line = f"bf16[1024,128] all-reduce(%x), replica_groups={{}}, backend_config={{{algorithm}}}"
    found = sent(line, "v6e:16x16", Mesh(fsdp=256))
    assert (found.links, found.group.links) == (links, 4)
