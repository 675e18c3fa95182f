"""Collectives in a step graph: which mesh axis each one runs over."""

from __future__ import annotations

import torch
import torch.distributed.tensor  # defines the operators of meshes
from torch import fx

GROUP = torch.ops._dtensor.mesh_get_process_group.default


def axis_of(group: fx.Node) -> str:
    """The name of the mesh axis of a process group node."""
    assert group.target is GROUP, f"{group} is no process group of a mesh"
    mesh, index = group.args
    assert isinstance(mesh, fx.Node)
    device_mesh = getattr(group.graph.owning_module, str(mesh.target))
    return device_mesh.mesh_dim_names[index]
