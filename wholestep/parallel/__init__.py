"""How a module is spread over devices: the mesh, and parameters that are stored as shards."""

from wholestep.parallel.mesh import Mesh, simulated_device_mesh
from wholestep.parallel.simple_fsdp import Policy, simple_fsdp, storage_shape

__all__ = ["Mesh", "Policy", "simple_fsdp", "simulated_device_mesh", "storage_shape"]
