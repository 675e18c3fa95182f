"""The devices of this process as a mesh. (`conftest.py` has split the CPU into eight.)"""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest

from wholestep.errors import ConfigError
from wholestep.parallel import Mesh
from wholestep.xla.devices import CPU_DEVICES, configure_devices, device_mesh, tpu_is_attached


def test_the_cpu_is_split_into_devices() -> None:
    assert len(jax.devices()) == CPU_DEVICES


def test_configuring_again_changes_nothing() -> None:
    before = jax.devices()
    configure_devices()
    assert jax.devices() == before


@pytest.mark.skipif(tpu_is_attached(), reason="there is a TPU here")
def test_without_a_tpu_jax_stays_on_the_cpu_quietly() -> None:
    done = configured("print(jax.devices()[0].platform)")
    assert done.stdout.split() == ["cpu"] and not done.stderr


def test_the_users_choice_of_platform_stands() -> None:
    assert configured("print(jax.config.jax_platforms)", JAX_PLATFORMS="tpu,cpu").stdout.split() == ["tpu,cpu"]


def configured(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new process after `configure_devices`."""
    code = f"import jax; from wholestep.xla.devices import configure_devices; configure_devices(); {code}"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"} | variables
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)


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
