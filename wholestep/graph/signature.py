"""What goes into a step: the values that a module's parameters, its buffers and a batch are, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from wholestep.errors import GraphError
from wholestep.graph.stacks import Stack
from wholestep.graph.step import AxisNames, Value
from wholestep.parallel.simple_fsdp import parameter_placements


@dataclass(frozen=True)
class Field:
    """One field of the batch: its global shape, rows first, and its dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def mesh_axes(mesh: DeviceMesh) -> dict[str, int]:
    """Axis name -> size."""
    return dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))


def parameter_values(module: nn.Module, mesh: DeviceMesh, stacks: Sequence[Stack] = ()) -> dict[str, Value]:
    """Name -> value of each parameter, placed as its `DTensor` is. Those that are one parameter of a stack's layers
    are one value, named like a slice (`layers.0:32:1.norm.weight`), with a first dimension for the layers."""
    values: dict[str, Value] = {}
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, DTensor):
            raise GraphError(f"parameter {name} is not sharded; call simple_fsdp on the module first")
        split: list[AxisNames] = [() for _ in parameter.shape]
        for axis, placement in zip(mesh_axes(mesh), parameter.placements, strict=True):
            if isinstance(placement, Shard):
                split[placement.dim] = (*split[placement.dim], axis)
        values[name] = Value(f"parameter/{name}", "parameter", tuple(parameter.shape), parameter.dtype, tuple(split))
    return _stacked(values, stacks)


def buffer_values(module: nn.Module, stacks: Sequence[Stack] = ()) -> dict[str, Value]:
    """Name -> value of each buffer, stacked likewise; every device holds a copy."""
    values = {
        name: Value(f"buffer/{name}", "buffer", tuple(buffer.shape), buffer.dtype, ((),) * buffer.dim())
        for name, buffer in module.named_buffers()
    }
    return _stacked(values, stacks)


def _stacked(values: Mapping[str, Value], stacks: Sequence[Stack]) -> dict[str, Value]:
    """`values` with those of a stack's layers as one."""
    together: dict[str, Value] = {}
    prefixes = {f"{path}.": (stack, i) for stack in stacks for i, path in enumerate(stack.paths)}
    for name, value in values.items():
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        if prefix is None:
            together[name] = value
            continue
        stack, i = prefixes[prefix]
        if i < stack.period:
            rest = name.removeprefix(prefix)
            whole = f"{stack.name_of(i)}.{rest}"
            members = tuple(f"{path}.{rest}" for path in stack.paths[i :: stack.period])
            together[whole] = value.stacked(f"{value.kind}/{whole}", members)
    return together


def batch_values(batch: Mapping[str, Field], mesh: DeviceMesh, microbatches: int) -> dict[str, Value]:
    """Name -> value of each field; rows are split over every axis of the mesh.

    Raises:
        GraphError: rows that do not divide.
    """
    names = tuple(mesh_axes(mesh))
    for name, field in batch.items():
        if field.shape[0] % (mesh.size() * microbatches):
            raise GraphError(
                f"batch field {name!r} has {field.shape[0]} rows; they must divide into {mesh.size()} devices x "
                f"{microbatches} microbatches"
            )
    return {
        name: Value(f"batch/{name}", "batch", field.shape, field.dtype, (names, *((),) * (len(field.shape) - 1)))
        for name, field in batch.items()
    }


def as_dtensor(shard: Tensor, shape: Sequence[int], mesh: DeviceMesh) -> DTensor:
    """One device's shard of a parameter of (stored) `shape` as the whole of it: what `simple_fsdp` modules read."""
    return DTensor.from_local(
        shard,
        mesh,
        parameter_placements(mesh),
        shape=torch.Size(shape),
        stride=torch.empty(tuple(shape), device="meta").stride(),
        run_check=False,
    )
