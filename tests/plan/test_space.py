"""The search space: what is in it, what is fixed, and that every candidate is a recipe that can be compiled."""

from __future__ import annotations

import itertools

import pytest

from wholestep.errors import ConfigError
from wholestep.plan.job import Job
from wholestep.plan.space import Space
from wholestep.xla.flags import compiler_options
from wholestep.xla.topologies import topology_chip


def space(recipe: str = "llama3_debug", topology: str = "v6e:2x2", **fields) -> Space:
    return Space.of(Job(recipe=recipe, topology=topology, **fields))


def choices(found: Space, group: str) -> list[tuple[str, ...]]:
    return [choice for dimension in found.dimensions if dimension.group == group for choice in dimension.choices]


@pytest.mark.parametrize(
    ("recipe", "topology", "slices"),
    [("llama3_debug", "v6e:2x2", 1), ("qwen3_moe_debug", "tpu7x:2x2x1", 1), ("qwen3_30b_a3b", "v5p:2x2x2", 2)],
)
def test_every_choice_is_a_valid_recipe_for_the_topology(recipe: str, topology: str, slices: int) -> None:
    found = space(recipe, topology, slices=slices, overrides=("layers.execution=loop",))
    near = itertools.chain.from_iterable(found.neighbours(found.base, group) for group in found.groups)
    for candidate in [found.base, *near]:
        job = found.job_of(candidate)
        built = job.build()
        built.check()
        assert job.mesh(built).size == job.devices
        compiler_options(built.flags, topology_chip(topology))


def test_meshes_shard_within_a_slice_or_a_part_of_one() -> None:
    found = space("qwen3_30b_a3b", "v5p:2x2x2", slices=2)
    meshes = [found.job_of(each).build().mesh.axes for each in found.neighbours(found.base, "mesh")]
    own = found.job_of(found.base).build().mesh.axes
    assert [own, *meshes] == [{"replicate": 2 * part, "fsdp": 8 // part} for part in (1, 2, 4)]


def test_rows_and_microbatches_divide() -> None:
    found = space()
    pairs = {
        (built.batch_size // 4, built.microbatches)
        for built in (found.job_of(each).build() for each in found.neighbours(found.base, "memory"))
    }
    own = {(1, 1)}
    assert pairs | own == {
        (rows, count) for rows in (1, 2, 3, 4, 6, 8, 12, 16) for count in (1, 2, 4) if rows % count == 0
    }


def test_what_layers_keep_is_searched_in_loops_only() -> None:
    assert ("layers.keep=save_matmuls",) not in choices(space(), "memory")
    assert ("layers.keep=save_matmuls",) in choices(space(overrides=("layers.execution=loop",)), "memory")


def test_kernels_are_those_that_match() -> None:
    def paths(found: Space) -> set[str]:
        return {group for group in found.groups if group.startswith("model.")}

    dense = {"model.layers.*.attention.inner", "model.lm_head.inner"}
    experts = {"model.layers.*.feed_forward.inner", "model.layers.*.feed_forward.route_score"}
    assert paths(space()) == dense
    assert paths(space("qwen3_moe_debug")) == dense | experts
    assert choices(space("qwen3_moe_debug"), "model.layers.*.feed_forward.inner") == [
        (),
        ("model.layers.*.feed_forward.inner=every_expert",),
        ("model.layers.*.feed_forward.inner=grouped_matmul",),
    ]
    mixed = space(overrides=("model.layers.0.attention.inner=splash",))
    assert paths(mixed) == {"model.lm_head.inner"}


def test_flags_are_those_of_the_chip_on_top_of_the_recipes_own() -> None:
    most = "latency_hiding,async_all_gather,vmem_96m"
    assert choices(space(), "flags")[:4] == [
        (),
        (f"flags={most}",),
        (f"flags={most},all_gather_fusion",),
        (f"flags={most},sparsecore_offload",),
    ]
    assert choices(space("llama3_8b_v6e_8", "v6e:2x4"), "flags")[:2] == [(), ("flags=",)]
    assert choices(space(topology="v5e:2x2"), "flags")[:2] == [(), (f"flags={most}",)]


def test_flags_for_the_host_are_for_what_is_moved_there() -> None:
    def offered(*overrides: str) -> bool:
        found = space(overrides=("layers.execution=loop", *overrides))
        return any("flags=host_offload" in each.overrides for each in found.neighbours(found.base, "flags"))

    assert not offered("layers.keep=recompute_all")
    assert offered("layers.keep=offload_matmuls")


def test_what_is_set_is_not_searched() -> None:
    found = space(
        overrides=(
            "layers.execution=loop",
            "mesh.fsdp=4",
            "batch_size=8",
            "microbatches=2",
            "layers.keep=save_all",
            "model.layers.*.attention.inner=splash",
            "model.lm_head.inner.multiplier=2",
        ),
        flags=("latency_hiding",),
    )
    assert found.groups == ()
    assert found.size == 1
    assert "flags=latency_hiding" in found.settings(found.base)


def test_a_batch_that_is_set_leaves_its_microbatches() -> None:
    found = space(overrides=("batch_size=16",))
    assert choices(found, "memory") == [(), ("microbatches=2",), ("microbatches=4",)]


def test_settings_say_all_that_training_needs_once() -> None:
    found = space()
    (other,) = (
        each for each in found.neighbours(found.base, "memory") if each.overrides == ("batch_size=8", "microbatches=2")
    )
    assert found.settings(other) == ("mesh.replicate=1", "mesh.fsdp=4", "batch_size=8", "microbatches=2")


def test_a_split_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="several programs of a step"):
        space(overrides=("layers.execution=split",))
