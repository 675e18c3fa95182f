"""The table of chips: that it agrees with itself and with libtpu."""

from __future__ import annotations

import math

import jax
import pytest

from wholestep.errors import ConfigError
from wholestep.parallel import Mesh
from wholestep.xla.chips import ANNOUNCED, CHIPS, Chip, chip_of
from wholestep.xla.devices import device_mesh
from wholestep.xla.topologies import topology_chip, topology_mesh


def named(name: str) -> Chip:
    return next(chip for chip in CHIPS if chip.name == name)


def chips_in(topology: str) -> int:
    return math.prod(map(int, topology.partition(":")[2].split("x")))


def of_topology(topology: str) -> jax.sharding.Mesh:
    return topology_mesh(topology, Mesh(fsdp=chips_in(topology) * topology_chip(topology).devices))


def test_names_and_kinds_are_unique() -> None:
    assert len({chip.name for chip in (*CHIPS, *ANNOUNCED)}) == len(CHIPS) + len(ANNOUNCED)
    assert len({chip.kind for chip in CHIPS}) == len(CHIPS)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_libtpu_knows_the_topologies_with_this_kind_and_number_of_devices(chip: Chip) -> None:
    assert [chips_in(name) for name in chip.topologies] == sorted(chips_in(name) for name in chip.topologies)
    for name in chip.topologies:
        assert topology_chip(name) == chip
        assert len(name.partition(":")[2].split("x")) == chip.torus_dimensions
        assert chips_in(name) <= chip.pod_chips
        assert chip_of(of_topology(name)) == chip


def test_every_torus_dimension_has_a_link_each_way() -> None:
    for chip in CHIPS:
        assert chip.ici_links == 2 * chip.torus_dimensions


@pytest.mark.parametrize(("name", "aggregate"), [("v4", 600e9), ("v5e", 400e9), ("v6e", 800e9), ("tpu7x", 1200e9)])
def test_all_links_both_ways_are_the_published_aggregate(name: str, aggregate: float) -> None:
    chip = named(name)
    assert 2 * chip.ici_links * chip.ici_bytes_per_second == pytest.approx(aggregate)


# 128 x 128 multiply-accumulates a cycle: 4 units on v5e, 8 on v4 and v5p; on v6e and later 256 x 256 of them.
@pytest.mark.parametrize(
    ("name", "per_cycle"), [("v4", 8 * 2 * 128**2), ("v5e", 4 * 2 * 128**2), ("v5p", 8 * 2 * 128**2)]
)
def test_the_clock_explains_the_peak(name: str, per_cycle: int) -> None:
    chip = named(name)
    assert chip.clock_hz[0] == chip.clock_hz[1] == pytest.approx(chip.peak_flops / per_cycle, rel=0.01)


def test_a_clock_that_is_uncertain_is_a_range() -> None:
    assert named("tpu7x").clock_hz == (1.9e9, 2.2e9)
    assert all(low <= high for low, high in (chip.clock_hz for chip in CHIPS))


@pytest.mark.parametrize("name", [chip.name for chip in ANNOUNCED])
def test_a_chip_that_is_only_announced_is_no_topology(name: str) -> None:
    message = f"{name} is announced, but libtpu does not compile for it; use v4, v5e, v5p, v6e, tpu7x"
    with pytest.raises(ConfigError, match=message):
        topology_mesh(f"{name}:4x4x4", Mesh(fsdp=64))


def test_a_cpu_is_no_chip() -> None:
    assert chip_of(device_mesh(Mesh(fsdp=2))) is None
