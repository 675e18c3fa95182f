"""Fully sharded data parallelism as a parametrization (after SimpleFSDP, arXiv:2411.00284).

A parameter is stored as its shard, a `DTensor`. Reading `module.weight` gathers it; the gather's backward is the
reduce-scatter. There are no hooks, no streams and no explicit calls, so a traced step holds every collective as a
node. Hybrid sharding is the same code on a mesh with one more axis in front.

    module = simple_fsdp(module, mesh, Policy(gather_dtype=torch.bfloat16, reduce_dtype=torch.float32))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Precision of what travels: weights on their way out, gradients on their way back.

    Attributes:
        gather_dtype: dtype a shard is cast to before it is gathered, and so the dtype the module computes in.
            None keeps the parameter's own.
        reduce_dtype: dtype a gradient is cast to before it is reduced. None keeps the gradient's own.
    """

    gather_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None


def storage_shape(shape: Sequence[int], shards: int) -> tuple[int, ...]:
    """The global shape that a parameter of `shape` is stored with: its first dimension padded to a multiple of
    `shards`, so that every device holds a shard of one size and runs one program. A scalar is stored as a vector.
    """
    first, *rest = shape or (1,)
    return (math.ceil(first / shards) * shards, *rest)


def simple_fsdp(module: nn.Module, mesh: DeviceMesh, policy: Policy | None = None) -> nn.Module:
    """Shard every parameter of `module`, in place, over the last axis of `mesh`, and replicate it over the others.

    Each parameter becomes a `DTensor` of `storage_shape(...)`; attribute access gives the whole weight, of its own
    shape, gathered in `policy.gather_dtype`. Gradients arrive on the `DTensor`s, reduced over the last axis and
    *still to be summed* over the others (placement `Partial`), so that accumulating several backward passes costs
    one all-reduce: `DTensor.redistribute(placements=parameter.placements)` does it. A parameter that several modules
    share stays one parameter. Works on meta parameters too.

    Args:
        module: any module whose parameters are plain tensors on the mesh's device type, or on meta.
        mesh: one axis (shard) or two (replicate x shard).
        policy: dtypes of gathers and reductions; by default the parameters' own.

    Returns:
        `module` itself.

    Raises:
        ValueError: the module is sharded already, or a parameter is a `DTensor`.
    """
    policy = policy or Policy()
    sharded: dict[nn.Parameter, _Sharded] = {}
    for path, submodule in module.named_modules():
        for name, parameter in list(submodule.named_parameters(recurse=False)):
            if isinstance(parameter, DTensor):
                raise ValueError(f"parameter {path}.{name} is a DTensor; shard a module once, and before other layouts")
            if parameter not in sharded:
                sharded[parameter] = _Sharded.of(parameter, mesh, policy)
    for submodule in module.modules():
        owned = {name: sharded[parameter] for name, parameter in submodule.named_parameters(recurse=False)}
        if owned:
            _parametrize(submodule, owned)
    return module


@dataclass(frozen=True, eq=False)
class _Sharded:
    """One sharded parameter and what is needed to read it."""

    parameter: nn.Parameter
    shape: torch.Size
    policy: Policy

    @classmethod
    def of(cls, parameter: nn.Parameter, mesh: DeviceMesh, policy: Policy) -> _Sharded:
        shards = mesh.size(mesh.ndim - 1)
        stored = storage_shape(parameter.shape, shards)
        if parameter.is_meta:
            local = torch.empty((stored[0] // shards, *stored[1:]), dtype=parameter.dtype, device="meta")
        else:
            whole = parameter.detach().reshape(parameter.shape or (1,))
            local = _pad_rows(whole, stored[0]).tensor_split(shards)[mesh.get_local_rank(mesh.ndim - 1)].clone()
        dtensor = DTensor.from_local(
            local,
            mesh,
            parameter_placements(mesh),
            shape=torch.Size(stored),
            stride=torch.empty(stored, device="meta").stride(),
            run_check=False,
        )
        return cls(nn.Parameter(dtensor, requires_grad=parameter.requires_grad), parameter.shape, policy)


def parameter_placements(mesh: DeviceMesh) -> list[Placement]:
    """Where a parameter lives on `mesh`: sharded on the last axis, replicated on the others."""
    return [*[Replicate() for _ in range(mesh.ndim - 1)], Shard(0)]


def gradient_placements(mesh: DeviceMesh) -> list[Placement]:
    """Where a parameter's gradient lives on `mesh`: sharded on the last axis, still to be summed over the others."""
    return [*[Partial() for _ in range(mesh.ndim - 1)], Shard(0)]


def _parametrize(module: nn.Module, owned: dict[str, _Sharded]) -> None:
    """Give `module` a class of its own on which each parameter's name is a property that gathers it."""

    def reader(name: str, sharded: _Sharded) -> property:
        # Read from `_parameters`, not from the closure: `torch.func.functional_call` swaps what is in there.
        return property(lambda self: _gather(self._parameters[name], sharded.shape, sharded.policy))

    cls = type(module)
    properties: dict[str, Any] = {name: reader(name, sharded) for name, sharded in owned.items()}
    module.__class__ = type(
        f"Sharded{cls.__name__}", (cls,), {"__module__": cls.__module__, "_is_sharded": True, **properties}
    )
    for name, sharded in owned.items():
        module._parameters[name] = sharded.parameter


def unsharded_class(module: nn.Module) -> type[nn.Module]:
    """The class that `module` had before it was sharded; its own where it is not."""
    cls = type(module)
    return cls.__bases__[0] if cls.__dict__.get("_is_sharded") else cls


def _gather(parameter: DTensor, shape: torch.Size, policy: Policy) -> Tensor:
    return _Gather.apply(parameter, shape, policy)


class _Gather(torch.autograd.Function):
    """Shard -> whole weight; backward: gradient of the whole weight -> its reduced shard.

    Written out rather than left to `DTensor.redistribute`'s own backward, which on a hybrid mesh all-reduces the
    whole gradient over `replicate` before it scatters it, and does so in every microbatch.
    """

    @staticmethod
    def forward(ctx: Any, parameter: DTensor, shape: torch.Size, policy: Policy) -> Tensor:
        ctx.parameter_dtype, ctx.mesh, ctx.policy = parameter.dtype, parameter.device_mesh, policy
        ctx.stored = parameter.shape
        shard = parameter.to(policy.gather_dtype or parameter.dtype)
        stored = shard.redistribute(placements=[Replicate()] * ctx.mesh.ndim).to_local()
        return stored[: (shape or (1,))[0]].reshape(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[DTensor, None, None]:
        mesh = ctx.mesh
        grad = grad.to(ctx.policy.reduce_dtype or grad.dtype).reshape(grad.shape or (1,))
        whole = DTensor.from_local(_pad_rows(grad, ctx.stored[0]), mesh, [Partial()] * mesh.ndim, run_check=False)
        shard = whole.redistribute(placements=gradient_placements(mesh))
        return shard.to(ctx.parameter_dtype), None, None


def _pad_rows(tensor: Tensor, rows: int) -> Tensor:
    """Zero rows appended up to `rows`; the tensor itself when it has as many."""
    missing = rows - tensor.shape[0]
    return F.pad(tensor, [0, 0] * (tensor.dim() - 1) + [0, missing]) if missing else tensor
