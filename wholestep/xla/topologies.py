"""Meshes of TPUs that are not here: the compiler needs a topology's name, not its hardware."""

from __future__ import annotations

import importlib.util
import math
import os
import re

import jax
from jax.experimental import topologies

from wholestep.errors import ConfigError, nearest
from wholestep.parallel.mesh import Mesh
from wholestep.xla.chips import ANNOUNCED, CHIPS, Chip
from wholestep.xla.devices import arrange, configure_devices, tpu_is_attached


def topology_mesh(name: str, mesh: Mesh, slices: int = 1) -> jax.sharding.Mesh:
    """A JAX mesh of `mesh`'s axes over the devices of `slices` TPU slices of this topology. Programs can be lowered
    and compiled for it, not run.

    Args:
        name: chip and torus of one slice, `v6e:2x4` or `tpu7x:4x4x8`; the chip is one of `wholestep.xla.chips.CHIPS`.
        mesh: as many devices as the slices have. Its outermost axes are those that cross slices.
        slices: how many.

    Raises:
        ConfigError: libtpu is not installed, the chip is unknown, the topology is none that libtpu knows, or the mesh
            has another number of devices.
    """
    chip = topology_chip(name)
    if slices < 1:
        raise ConfigError(f"{slices} slices of {name}: at least 1")
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError("compiling for a TPU topology needs libtpu: pip install 'wholestep[tpu-compiler]'")
    configure_devices()
    if not tpu_is_attached():  # where there is one, its runtime has set these to what is true
        _describe_host(f"{chip.name}-{mesh.size}")
    try:
        devices = topologies.get_topology_desc(
            platform="tpu", topology_name=name, num_slices=slices, chip_config_name=chip.layout
        ).devices
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(
            f"topology {name!r}: libtpu knows no such torus, as it knows {', '.join(chip.topologies)} "
            f"({str(error).splitlines()[0]})"
        ) from error
    if len(devices) != mesh.size:
        per_chip = f" ({chip.devices} on a chip)" if chip.devices > 1 else ""
        each = f" in {slices} slices" if slices > 1 else ""
        raise ConfigError(
            f"mesh {mesh} needs {mesh.size} devices, but topology {name}{each} has {len(devices)}{per_chip}"
        )
    return arrange(mesh, devices)


def topology_chip(name: str) -> Chip:
    """The chip of a topology's name.

    Raises:
        ConfigError: it is not `CHIP:AxB` or `CHIP:AxBxC`, or the chip is unknown or only announced.
    """
    match = re.fullmatch(r"([^:]+):\d+x\d+(x\d+)?", name)
    if match is None:
        raise ConfigError(f"topology {name!r} is not a chip and a torus, as in v6e:2x4 or tpu7x:4x4x8")
    torus = [int(size) for size in name.partition(":")[2].split("x")]
    known = {chip.name: chip for chip in CHIPS}
    if match[1] in {chip.name for chip in ANNOUNCED}:
        raise ConfigError(
            f"topology {name!r}: {match[1]} is announced, but libtpu does not compile for it; use {', '.join(known)}"
        )
    if match[1] not in known:
        raise ConfigError(
            f"topology {name!r}: no chip {match[1]!r}; chips are {', '.join(known)}{nearest(match[1], known)}"
        )
    chip = known[match[1]]
    if chip.torus_dimensions == 2 and math.prod(torus[2:]) > 1:
        raise ConfigError(
            f"topology {name!r}: the links of {chip.name} form a torus of two dimensions, as in {chip.topologies[-1]}"
        )
    if not 0 < math.prod(torus) <= chip.pod_chips:
        raise ConfigError(
            f"topology {name!r}: a slice of {chip.name} has 1 to {chip.pod_chips:,} chips, not {math.prod(torus):,}"
        )
    return chip


def _describe_host(accelerator: str) -> None:
    """Say what libtpu would otherwise ask Google Cloud's metadata server, or complain that it does not know."""
    facts = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": accelerator,
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # there is no device that two processes could fight over
    }
    for variable, value in facts.items():
        os.environ.setdefault(variable, value)
