"""Compiler flags: what the real compiler takes, and what is said of those that it does not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from graph.small_step import Stack, capture
from jax.sharding import NamedSharding, PartitionSpec

from wholestep import pipeline
from wholestep.config.override import apply
from wholestep.errors import ConfigError
from wholestep.graph.split import Cut
from wholestep.parallel import Mesh
from wholestep.recipes.registry import find
from wholestep.xla.chips import CHIPS, Chip
from wholestep.xla.devices import device_mesh
from wholestep.xla.flag_sets import SETS
from wholestep.xla.flags import compile_with, compiler_options
from wholestep.xla.known_flags import FLAGS, INTEGER
from wholestep.xla.memory_use import compile_for_tpu
from wholestep.xla.program import Program
from wholestep.xla.split_program import SplitProgram
from wholestep.xla.topologies import topology_mesh

BY_NAME = {chip.name: chip for chip in CHIPS}
V6E = BY_NAME["v6e"]
FUSION = "xla_tpu_enable_async_collective_fusion"
OFFLOAD = "xla_tpu_enable_sparse_core_collective_offload_all_gather"


def tiny(topology: str, devices: int) -> jax.stages.Lowered:
    mesh = topology_mesh(topology, Mesh(fsdp=devices))
    x = jax.ShapeDtypeStruct((128, 128), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec()))
    return jax.jit(lambda x: x @ x).lower(x)


@pytest.mark.parametrize("choice", range(max(len(flag.takes) for flag in FLAGS.values() if flag.takes != INTEGER)))
def test_the_compiler_takes_every_flag_and_value(choice: int) -> None:
    values = {
        name: "65536" if flag.takes == INTEGER else flag.takes[choice % len(flag.takes)] for name, flag in FLAGS.items()
    }
    compile_with(tiny("v6e:2x2", 4), values)


@pytest.mark.parametrize(("topology", "devices"), [("v4:2x2x1", 4), ("v5e:2x2", 4), ("v6e:2x2", 4), ("tpu7x:2x2x1", 8)])
def test_every_set_of_a_chip_compiles_for_it(topology: str, devices: int) -> None:
    chip = BY_NAME[topology.partition(":")[0]]
    lowered = tiny(topology, devices)
    for name, flag_set in SETS.items():
        if chip.name in flag_set.chips:
            compile_with(lowered, compiler_options([name], chip))


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_for_chips_that_all_its_flags_are_for(name: str) -> None:
    for chip in CHIPS:
        if chip.name in SETS[name].chips:
            assert compiler_options([name], chip) == dict(SETS[name].values)


def test_a_later_setting_wins() -> None:
    options = compiler_options(["vmem_96m", "xla_tpu_scoped_vmem_limit_kib=16384", "latency_hiding"], V6E)
    assert options["xla_tpu_scoped_vmem_limit_kib"] == "16384"
    assert options["xla_latency_hiding_scheduler_rerun"] == "2"
    assert compiler_options(["all_gather_fusion", "sparsecore_offload"], V6E)[f"{FUSION}_fuse_all_gather"] == "false"


def test_values_are_spelled_as_the_compiler_reads_them() -> None:
    assert compiler_options([f"{OFFLOAD}=True", "xla_tpu_bf16_emission_mode=native_emission"], V6E) == {
        OFFLOAD: "true",
        "xla_tpu_bf16_emission_mode": "NATIVE_EMISSION",
    }


def test_a_cpu_takes_none() -> None:
    assert compiler_options(["vmem_96m", "xla_tpu_rwb_fusion=false"], None) == {}


@pytest.mark.parametrize(
    ("settings", "chip", "message"),
    [
        (["vmem_96"], "v6e", "no set 'vmem_96'; did you mean 'vmem_96m'"),
        (["xla_tpu_rwb_fusion"], "v6e", "xla_tpu_rwb_fusion needs a value: xla_tpu_rwb_fusion=true|false"),
        (["tpu_rwb_fusion=true"], "v6e", "no flag 'tpu_rwb_fusion'; did you mean 'xla_tpu_rwb_fusion'"),
        (["xla_tpu_rwb_fusion=auto"], "v6e", "xla_tpu_rwb_fusion takes true, false, not 'auto'"),
        (["xla_tpu_scoped_vmem_limit_kib=96MiB"], "v6e", "takes an integer, not '96MiB'"),
        (["vmem_96m=true"], "v6e", "vmem_96m is a set of flags: name it without a value"),
        (["vmem_96m"], "tpu7x", "vmem_96m is for v5e, v6e, not for tpu7x"),
        ([f"{OFFLOAD}=true"], "v5e", f"{OFFLOAD} is for v5p, v6e, tpu7x, not for v5e"),
        (
            ["xla_tpu_enable_latency_hiding_layer_scheduler=true"],
            "v6e",
            "layer_scheduler needs xla_tpu_enable_sparse_core_collective_aggregator=true",
        ),
        (
            ["sparsecore_offload", "all_gather_fusion"],
            "v6e",
            f"{OFFLOAD}=true conflicts with {FUSION}_fuse_all_gather=true",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(settings: list[str], chip: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compiler_options(settings, BY_NAME[chip])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_flag_that_is_off_needs_nothing_and_conflicts_with_nothing() -> None:
    settings = ["xla_tpu_enable_latency_hiding_layer_scheduler=false", f"{OFFLOAD}=auto", "all_gather_fusion"]
    assert len(compiler_options(settings, V6E)) == 7


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("xla_tpu_rwb_fuson=true", "the compiler knows no 'xla_tpu_rwb_fuson'; did you mean 'xla_tpu_rwb_fusion'"),
        ("xla_tpu_dot_dot_fusion=perhaps", "Failed to parse 'perhaps' into flag xla_tpu_dot_dot_fusion"),
    ],
)
def test_the_compiler_judges_what_is_not_known_here(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compile_for_tpu(tiny("v6e:2x2", 4), options=compiler_options([setting], V6E))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("past_memory", [False, True])
def test_a_flag_that_is_not_known_here_reaches_the_compiler(past_memory: bool) -> None:
    options = compiler_options(["xla_tpu_dot_dot_fusion=false"], V6E)
    assert options == {"xla_tpu_dot_dot_fusion": "false"}
    compile_for_tpu(tiny("v6e:2x2", 4), options=options, past_memory=past_memory)


@pytest.mark.parametrize("execution", ["unrolled", "split"])
@pytest.mark.parametrize("chip", [None, V6E], ids=["cpu", "v6e"])
def test_a_recipes_flags_are_its_programs_options(execution: str, chip: Chip | None) -> None:
    settings = [f"layers.execution={execution}", "flags=latency_hiding,xla_tpu_rwb_fusion=false"]
    recipe = apply(find("llama3_debug").function(), settings)
    mesh = Mesh(fsdp=4)
    devices = topology_mesh("v6e:2x2", mesh) if chip else device_mesh(mesh)
    program = pipeline._program(capture(Stack(), mesh), recipe, devices)
    assert isinstance(program, SplitProgram) == (execution == "split")
    assert program.options == compiler_options(recipe.flags, chip)
    assert bool(program.options) == bool(chip)


def test_programs_are_compiled_with_their_options() -> None:
    step = capture(Stack(), Mesh(fsdp=4))
    devices, bad = topology_mesh("v6e:2x2", Mesh(fsdp=4)), {"xla_no_such_flag": "true"}
    with pytest.raises(ConfigError, match="the compiler knows no 'xla_no_such_flag'"):
        Program(step, devices, bad).compile()
    with pytest.raises(ConfigError, match="the compiler knows no 'xla_no_such_flag'"):
        SplitProgram(step, devices, Cut("layers", 1), bad).compile()


def test_needs_and_conflicts_name_flags_that_are_known() -> None:
    for flag in FLAGS.values():
        for other, value in {**flag.needs, **flag.conflicts}.items():
            takes = FLAGS[other].takes
            assert not isinstance(takes, str) and value in takes
        assert set(flag.chips) <= set(BY_NAME)
