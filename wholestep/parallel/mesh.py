"""The mesh: how many devices, along which named axes, and a torch `DeviceMesh` of any size in one process.

Axes, outermost first:

- `replicate`: devices that hold a copy each (hybrid sharding); its traffic is one gradient all-reduce a step.
- `fsdp`: devices that hold a shard each of every parameter and of the optimizer state.

The batch is split over both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch.distributed as dist
import torch.distributed.config as distributed_config
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from wholestep.config.node import Node
from wholestep.errors import ConfigError, nearest


@dataclass(frozen=True, kw_only=True)
class Mesh(Node):
    """Axis sizes of a mesh; an axis of size 1 still exists, so that a program never depends on which ones are used."""

    replicate: int = 1
    fsdp: int = 1

    def __post_init__(self) -> None:
        for axis, size in self.axes.items():
            if size < 1:
                raise ConfigError(f"mesh axis {axis!r} has size {size}; a size is at least 1")

    @property
    def axes(self) -> dict[str, int]:
        """Axis name -> number of devices along it, outermost first."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.axes.values())

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """`"replicate=2,fsdp=4"` -> a mesh; an axis that is not named has size 1.

        Raises:
            ConfigError: an unknown axis, or a size that is not a positive integer.
        """
        known = [field.name for field in fields(cls)]
        sizes: dict[str, int] = {}
        for part in text.split(","):
            axis, equals, size = (piece.strip() for piece in part.partition("="))
            if axis not in known:
                raise ConfigError(f"mesh {text!r}: no axis {axis!r}; axes are {', '.join(known)}{nearest(axis, known)}")
            if axis in sizes:
                raise ConfigError(f"mesh {text!r}: axis {axis!r} is given twice")
            if not equals or not size.isdecimal():
                raise ConfigError(f"mesh {text!r}: axis {axis!r} needs a size, as in {axis}=8")
            sizes[axis] = int(size)
        return cls(**sizes)

    def __str__(self) -> str:
        used = {axis: size for axis, size in self.axes.items() if size > 1} or {"fsdp": 1}
        return ",".join(f"{axis}={size}" for axis, size in used.items())


@contextmanager
def simulated_device_mesh(mesh: Mesh) -> Iterator[DeviceMesh]:
    """A torch `DeviceMesh` of `mesh`'s shape in this one process, for tracing: its collectives do nothing.

    What is traced under it does not depend on the rank that traced: process groups and coordinates appear in the
    graph as functions of the mesh (`torch.distributed.config.compile_on_one_rank`), for the lowering to resolve.

    Raises:
        RuntimeError: a process group exists already; a real one must not be replaced by a simulated one.
    """
    if dist.is_initialized():
        raise RuntimeError("a torch process group exists already; a step is captured in a process without one")
    before = distributed_config.compile_on_one_rank
    distributed_config.compile_on_one_rank = True
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=mesh.size)
    try:
        yield init_device_mesh("cpu", tuple(mesh.axes.values()), mesh_dim_names=tuple(mesh.axes))
    finally:
        dist.destroy_process_group()
        distributed_config.compile_on_one_rank = before
