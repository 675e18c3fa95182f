"""Programs for TPUs that are not here: meshes of a topology, and what the TPU compiler says of a program's memory."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec
from support import OBJECTIVE, fields, tiny_config

from wholestep.errors import ConfigError, DeviceMemoryError
from wholestep.graph.capture import capture_train_step
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep
from wholestep.graph.policies import POLICIES
from wholestep.models.decoder import Decoder
from wholestep.models.llama3 import llama3_debug_config
from wholestep.parallel import Mesh, Policy, simple_fsdp, simulated_device_mesh
from wholestep.xla.memory_use import MemoryUse, compile_for_tpu
from wholestep.xla.program import Program
from wholestep.xla.topologies import topology_mesh


def train_step(model: Decoder.Config, mesh: Mesh, keep: str, length: int) -> jax.stages.Compiled:
    """A step with the model's layers in a loop, one row a device, compiled for a v6e."""
    with torch.device("meta"):
        module = model.build()
    with simulated_device_mesh(mesh) as simulated:
        simple_fsdp(module, simulated, Policy(gather_dtype=torch.bfloat16))
        batch, looped = fields(mesh.size, length), Layers(Keep(POLICIES[keep]), looped=True)
        step = capture_train_step(module, OBJECTIVE, AdamW(), batch, simulated, layers=looped)
    return compile_for_tpu(Program(step, topology_mesh("v6e:2x2", mesh)).lower())


def replicated(devices: jax.sharding.Mesh, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(devices, PartitionSpec()))


@pytest.mark.parametrize(
    ("name", "mesh", "slices"),
    [
        ("v6e:2x4", Mesh(fsdp=8), 1),
        ("v6e:2x4", Mesh(replicate=2, fsdp=4), 1),
        ("v5p:2x2x1", Mesh(fsdp=4), 1),
        ("tpu7x:4x4x8", Mesh(fsdp=256), 1),
        ("tpu7x:4x4x4", Mesh(replicate=2, fsdp=128), 2),
        ("v6e:2x4", Mesh(replicate=4, fsdp=4), 2),
        ("v6e:2x2", Mesh(fsdp=12), 3),
    ],
)
def test_a_mesh_has_every_device_once_and_its_outermost_axes_cross_slices(name: str, mesh: Mesh, slices: int) -> None:
    devices = topology_mesh(name, mesh, slices)
    assert dict(devices.shape) == mesh.axes
    assert len({device.id for device in devices.devices.flat}) == mesh.size
    slice_of = [getattr(device, "slice_index", 0) for device in devices.devices.flat]
    assert slice_of == sorted(slice_of) and len(set(slice_of)) == slices


def test_neighbours_in_a_mesh_are_neighbours_on_the_torus() -> None:
    coordinates = [device.coords for device in topology_mesh("v6e:2x2", Mesh(fsdp=4)).devices.flat]
    for one, other in zip(coordinates, [*coordinates[1:], coordinates[0]], strict=True):
        assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) == 1


@pytest.mark.parametrize(
    ("name", "mesh", "slices", "message"),
    [
        ("v6e:2x4", Mesh(fsdp=4), 1, "mesh fsdp=4 needs 4 devices, but topology v6e:2x4 has 8"),
        ("v6e:2x2", Mesh(fsdp=4), 2, "mesh fsdp=4 needs 4 devices, but topology v6e:2x2 in 2 slices has 8"),
        ("tpu7x:2x2x1", Mesh(fsdp=4), 1, r"needs 4 devices, but topology tpu7x:2x2x1 has 8 \(2 on a chip\)"),
        ("v6:2x2", Mesh(fsdp=4), 1, "no chip 'v6'; chips are v4, v5e, v5p, v6e, tpu7x; did you mean 'v6e'"),
        ("v6e", Mesh(fsdp=4), 1, "'v6e' is not a chip and a torus, as in v6e:2x4"),
        ("v6e:2xx", Mesh(fsdp=4), 1, "'v6e:2xx' is not a chip and a torus"),
        (
            "v6e:3x5",
            Mesh(fsdp=15),
            1,
            "topology 'v6e:3x5': libtpu knows no such torus, as it knows v6e:2x2, .*divisible",
        ),
        ("v6e:2x2x2", Mesh(fsdp=8), 1, "the links of v6e form a torus of two dimensions, as in v6e:16x16"),
        ("v6e:32x32", Mesh(fsdp=1024), 1, "a slice of v6e has 1 to 256 chips, not 1,024"),
        ("v6e:0x2", Mesh(fsdp=4), 1, "a slice of v6e has 1 to 256 chips, not 0"),
        ("v6e:2x2", Mesh(fsdp=4), 0, "0 slices of v6e:2x2: at least 1"),
    ],
)
def test_what_is_wrong_with_a_topology_is_said(name: str, mesh: Mesh, slices: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        topology_mesh(name, mesh, slices)
    assert "\n" not in str(caught.value)


def test_without_libtpu_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'wholestep\[tpu-compiler\]'"):
        topology_mesh("v6e:2x2", Mesh(fsdp=4))


def test_a_train_step_compiles_for_a_tpu_and_its_state_is_updated_in_place() -> None:
    use = MemoryUse.of(train_step(tiny_config(), Mesh(replicate=2, fsdp=2), "recompute_all", length=16))
    assert 0 < use.aliased <= use.outputs < use.arguments
    assert use.host_temporaries == 0
    assert use.total == use.arguments + use.temporaries + use.outputs - use.aliased + use.code


def test_offloaded_layer_inputs_are_in_the_hosts_memory() -> None:
    model, length = llama3_debug_config(), 512
    use = MemoryUse.of(train_step(model, Mesh(fsdp=4), "offload_layer_inputs", length))
    assert use.host_temporaries == len(model.layers) * length * model.dim * 2
    assert use.temporaries > 0


def test_a_program_that_does_not_fit_says_what_it_needs() -> None:
    devices = topology_mesh("v6e:2x2", Mesh(fsdp=4))
    half = replicated(devices, 2**17, 2**15)  # 16 GiB
    lowered = jax.jit(lambda x, y: x[0, 0] + y[0, 0]).lower(half, half)
    with pytest.raises(DeviceMemoryError, match=r"at least 32\.00 GiB on a device, and there are 31\.25 GiB") as caught:
        compile_for_tpu(lowered)
    assert (caught.value.needed, caught.value.available) == (32 * 2**30, 31.25 * 2**30)
    assert MemoryUse.of(compile_for_tpu(lowered, past_memory=True)).total > caught.value.needed
