"""The devices of this process, and a JAX mesh of them."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax.experimental import mesh_utils

from wholestep.errors import ConfigError
from wholestep.parallel.mesh import Mesh

CPU_DEVICES = 8
"""How many virtual devices the CPU is split into, unless JAX_NUM_CPU_DEVICES or XLA_FLAGS says otherwise."""


def configure_devices() -> None:
    """Split the CPU into virtual devices, and stay on it where libtpu is installed for its compiler alone.

    Does nothing once JAX has started.
    """
    # Without a TPU, JAX comes to the CPU by itself too, but only after libtpu has failed to start one, with pages of
    # complaints, and, in the second process that tries at once, with an abort over its lock file.
    if importlib.util.find_spec("libtpu") and not tpu_is_attached() and not jax.config.jax_platforms:
        jax.config.update("jax_platforms", "cpu")
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not forced and jax.config.jax_num_cpu_devices == -1:
        with contextlib.suppress(RuntimeError):  # raised once JAX has started
            jax.config.update("jax_num_cpu_devices", CPU_DEVICES)


def tpu_is_attached() -> bool:
    """Whether this machine may have a TPU: its chips are /dev/accel0 and on up to v4, /dev/vfio/0 and on since v5e.
    (/dev/vfio/vfio alone is there wherever that kernel module is loaded.)"""
    devices = Path("/dev")
    return any(True for pattern in ("accel[0-9]*", "vfio/[0-9]*") for _ in devices.glob(pattern))


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
    return arrange(mesh, devices[: mesh.size])


def arrange(mesh: Mesh, devices: Sequence[jax.Device]) -> jax.sharding.Mesh:
    """A JAX mesh of `mesh`'s axes over these devices, as many as it has: neighbours along an axis are near each other
    on a TPU's torus, and the outermost axes are those that cross slices. Other devices are taken in order."""
    shape, names = tuple(mesh.axes.values()), tuple(mesh.axes)
    if devices[0].platform != "tpu":
        return jax.sharding.Mesh(np.asarray(devices).reshape(shape), names)
    across, slices = [], len({getattr(device, "slice_index", 0) for device in devices})
    for size in shape:
        across.append(math.gcd(size, slices))
        slices //= across[-1]
    if math.prod(across) > 1:
        within = [size // crossing for size, crossing in zip(shape, across, strict=True)]
        grid = mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)
    else:
        grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return jax.sharding.Mesh(grid, names)
