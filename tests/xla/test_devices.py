"""The devices of this process as a mesh. (`conftest.py` has split the CPU into eight.)"""

from __future__ import annotations

import jax
import pytest

from wholestep.errors import ConfigError
from wholestep.parallel import Mesh
from wholestep.xla.devices import CPU_DEVICES, configure_devices, device_mesh


def test_the_cpu_is_split_into_devices() -> None:
    assert len(jax.devices()) == CPU_DEVICES


def test_configuring_again_changes_nothing() -> None:
    before = jax.devices()
    configure_devices()
    assert jax.devices() == before


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(fsdp=3), Mesh(fsdp=8), Mesh(replicate=2, fsdp=4)], ids=str)
def test_the_mesh_has_the_axes_and_takes_devices_in_order(mesh: Mesh) -> None:
    devices = device_mesh(mesh)
    assert dict(devices.shape) == mesh.axes
    assert devices.axis_names == tuple(mesh.axes)
    assert list(devices.devices.flat) == jax.devices()[: mesh.size]


def test_too_few_devices_is_an_error_that_says_how_to_have_more() -> None:
    message = r"mesh replicate=2,fsdp=8 needs 16 devices, but there are 8 \(cpu\); JAX_NUM_CPU_DEVICES=16 makes"
    with pytest.raises(ConfigError, match=message):
        device_mesh(Mesh(replicate=2, fsdp=8))
