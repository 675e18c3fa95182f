"""The devices of this process, and a JAX mesh of them."""

from __future__ import annotations

import contextlib
import os

import jax
import numpy as np

from wholestep.errors import ConfigError
from wholestep.parallel.mesh import Mesh

CPU_DEVICES = 8
"""How many virtual devices the CPU is split into, unless JAX_NUM_CPU_DEVICES or XLA_FLAGS says otherwise."""


def configure_devices() -> None:
    """Split the CPU into virtual devices. Does nothing once JAX has started."""
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not forced and jax.config.jax_num_cpu_devices == -1:
        with contextlib.suppress(RuntimeError):  # raised once JAX has started
            jax.config.update("jax_num_cpu_devices", CPU_DEVICES)


def device_mesh(mesh: Mesh) -> jax.sharding.Mesh:
    """A JAX mesh of `mesh`'s axes over this run's devices.

    Raises:
        ConfigError: there are fewer devices than the mesh needs, or, on real hardware, more.
    """
    configure_devices()
    devices = jax.devices()
    platform = devices[0].platform
    if mesh.size > len(devices) or (mesh.size < len(devices) and platform != "cpu"):
        more = f"; JAX_NUM_CPU_DEVICES={mesh.size} makes as many virtual ones" if platform == "cpu" else ""
        raise ConfigError(f"mesh {mesh} needs {mesh.size} devices, but there are {len(devices)} ({platform}){more}")
    shape = tuple(mesh.axes.values())
    if platform == "cpu":  # all alike: take them in order, so that fewer than all will do
        return jax.sharding.Mesh(np.asarray(devices[: mesh.size]).reshape(shape), tuple(mesh.axes))
    return jax.make_mesh(shape, tuple(mesh.axes))
