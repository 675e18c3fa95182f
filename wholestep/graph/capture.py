"""Module + objective + optimizer -> the whole step as one `StepGraph`.

A step is a plain function of tensors, written here as one would write it for a single device; tracing it is what makes
it a graph. Collectives come in by reading sharded parameters and by the sums over devices below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.func import functional_call

from wholestep.errors import GraphError
from wholestep.graph.optimizer import AdamW, clip_factor
from wholestep.graph.passes import run_passes
from wholestep.graph.scan import scan
from wholestep.graph.step import AxisNames, StepGraph, Value
from wholestep.graph.trace import gradients, trace
from wholestep.parallel.simple_fsdp import parameter_placements

Batch = dict[str, Tensor]
Objective = Callable[[nn.Module, Batch], tuple[Tensor, Tensor, dict[str, Tensor]]]
"""`(module, batch) -> (loss_sum, weight, metrics)`: the summed loss of the batch's items, how many items (or how much
weight) that is, and further sums to report. A step divides them all by the weight of the whole global batch."""


@dataclass(frozen=True)
class Field:
    """One field of the batch: its global shape, rows first, and its dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def capture_train_step(
    module: nn.Module,
    objective: Objective,
    optimizer: AdamW,
    batch: Mapping[str, Field],
    mesh: DeviceMesh,
    microbatches: int = 1,
) -> StepGraph:
    """Forward, loss, backward, clipping and the optimizer as one graph.

    Inputs: the state (parameters, the optimizer's slots, buffers), the batch, and the scalars `learning_rate` and
    `step` (from 1). Outputs: the new state and the metrics `loss`, `grad_norm`, `weight`, `grad_norms` (of each
    trained parameter, in order) and the objective's own. If the loss or the gradient norm is not finite, the state
    comes out as it went in.

    Args:
        module: sharded by `simple_fsdp` over `mesh`; its parameters may be on meta. One that needs no gradient is
            not trained.
        objective: what is minimized.
        optimizer: how.
        batch: the global batch's fields.
        mesh: from `simulated_device_mesh`.
        microbatches: how many backward passes a step accumulates, in a loop inside the program.

    Raises:
        GraphError: rows that do not divide; a trained parameter that the loss does not depend on; a buffer that the
            forward pass changes.
    """
    parameters = _parameter_values(module, mesh)
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    if not trained:
        raise GraphError("no parameter requires a gradient: there is nothing to train")
    slots = [
        Value(f"{slot}/{name}", "optimizer", value.shape, value.dtype, value.placement)
        for slot in optimizer.slots
        for name in trained
        for value in [parameters[name]]
    ]
    buffers = _buffer_values(module)
    fields = _batch_values(batch, mesh, microbatches)
    scalars = [Value(f"scalar/{name}", "scalar", (), torch.float32, ()) for name in ("learning_rate", "step")]
    metric_names = ["loss", "grad_norm", "weight"]

    def microbatch(
        shards: Mapping[str, Tensor], constants: Mapping[str, Tensor], rows: Batch
    ) -> tuple[list[Tensor], Tensor]:
        weights = {name: _as_dtensor(shard, parameters[name], mesh) for name, shard in shards.items()}
        for name in trained:
            weights[name].requires_grad_(True)
        loss_sum, weight, metrics = _call(module, objective, {**weights, **constants}, rows)
        metric_names[3:] = metrics
        grads = gradients(loss_sum, [weights[name] for name in trained])
        unused = [name for name, grad in zip(trained, grads, strict=True) if grad is None]
        if unused:
            raise GraphError(f"the loss does not depend on {', '.join(unused)}: use them, or requires_grad_(False)")
        totals = torch.stack([total.detach().float() for total in (loss_sum, weight, *metrics.values())])
        return [grad.to_local() for grad in grads if isinstance(grad, DTensor)], totals

    def step(
        shards: dict[str, Tensor], old: list[Tensor], constants: dict[str, Tensor], rows: Batch, scalar: list[Tensor]
    ) -> list[Tensor]:
        if microbatches == 1:
            grads, totals = microbatch(shards, constants, rows)
        else:
            grads, totals = _accumulate(microbatch, trained, shards, constants, rows, microbatches)
        loss_sum, weight, *extra = _sum_over(totals, mesh, tuple(_axes(mesh))).unbind()
        scale = 1 / torch.where(weight > 0, weight, 1.0)
        grads = [_reduce_replicas(grad, mesh) * scale for grad in grads]
        squares = _sum_over(torch.stack([grad.float().square().sum() for grad in grads]), mesh, tuple(_axes(mesh))[-1:])
        loss, norm = loss_sum * scale, squares.sum().sqrt()
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        factor = clip_factor(norm, optimizer.clip_norm)
        new_parameters: list[Tensor] = []
        new_slots: list[list[Tensor]] = [[] for _ in optimizer.slots]
        for i, (name, grad) in enumerate(zip(trained, grads, strict=True)):
            before = [old[row * len(trained) + i] for row in range(len(optimizer.slots))]
            new, after = optimizer.update(shards[name], grad * factor, before, *scalar)
            new_parameters.append(torch.where(finite, new, shards[name]))
            for column, new_slot, old_slot in zip(new_slots, after, before, strict=True):
                column.append(torch.where(finite, new_slot, old_slot))
        results = [loss, norm, weight, *(value * scale for value in extra), squares.sqrt()]
        return [*new_parameters, *(new for column in new_slots for new in column), *results]

    inputs = [*parameters.values(), *slots, *buffers.values(), *fields.values(), *scalars]
    axes = _axes(mesh)
    with FakeTensorMode():
        fake = {value.name: torch.empty(value.local_shape(axes), dtype=value.dtype) for value in inputs}
        arguments = (
            {name: fake[value.name] for name, value in parameters.items()},
            [fake[value.name] for value in slots],
            {name: fake[value.name] for name, value in buffers.items()},
            {name: fake[value.name] for name, value in fields.items()},
            [fake[value.name] for value in scalars],
        )
        graph = trace(step, arguments, module)
    outputs = [
        *(parameters[name] for name in trained),
        *slots,
        *(Value(f"metric/{name}", "metric", (), torch.float32, ()) for name in metric_names),
        Value("metric/grad_norms", "metric", (len(trained),), torch.float32, ((),)),
    ]
    return run_passes(StepGraph(graph, tuple(inputs), tuple(outputs), axes))


def capture_eval_step(
    module: nn.Module, objective: Objective, batch: Mapping[str, Field], mesh: DeviceMesh
) -> StepGraph:
    """The loss of a batch, without gradients: parameters, buffers and batch -> `loss_sum`, `weight` and the
    objective's metrics, summed over the global batch and not divided, so that batches add up."""
    parameters, buffers, fields = _parameter_values(module, mesh), _buffer_values(module), _batch_values(batch, mesh, 1)
    metric_names = ["loss_sum", "weight"]

    def step(shards: dict[str, Tensor], constants: dict[str, Tensor], rows: Batch) -> list[Tensor]:
        weights = {name: _as_dtensor(shard, parameters[name], mesh) for name, shard in shards.items()}
        with torch.no_grad():
            loss_sum, weight, metrics = _call(module, objective, {**weights, **constants}, rows)
        metric_names[2:] = metrics
        totals = torch.stack([total.float() for total in (loss_sum, weight, *metrics.values())])
        return list(_sum_over(totals, mesh, tuple(_axes(mesh))).unbind())

    inputs = [*parameters.values(), *buffers.values(), *fields.values()]
    axes = _axes(mesh)
    with FakeTensorMode():
        fakes = [
            {name: torch.empty(value.local_shape(axes), dtype=value.dtype) for name, value in group.items()}
            for group in (parameters, buffers, fields)
        ]
        graph = trace(step, fakes, module)
    outputs = [Value(f"metric/{name}", "metric", (), torch.float32, ()) for name in metric_names]
    return run_passes(StepGraph(graph, tuple(inputs), tuple(outputs), axes))


def _accumulate(
    microbatch: Callable[[Mapping[str, Tensor], Mapping[str, Tensor], Batch], tuple[list[Tensor], Tensor]],
    trained: Sequence[str],
    shards: Mapping[str, Tensor],
    constants: Mapping[str, Tensor],
    rows: Batch,
    microbatches: int,
) -> tuple[list[Tensor], Tensor]:
    """The sums of `microbatch`'s results over equal slices of the rows, as one loop."""

    def body(
        carry: Sequence[Tensor], piece: Sequence[Tensor], consts: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        weights = dict(zip(shards, consts[: len(shards)], strict=True))
        others = dict(zip(constants, consts[len(shards) :], strict=True))
        grads, totals = microbatch(weights, others, dict(zip(rows, piece, strict=True)))
        return [total + grad for total, grad in zip(carry, grads, strict=True)], [totals]

    pieces = [field.reshape(microbatches, -1, *field.shape[1:]) for field in rows.values()]
    zeros = [torch.zeros_like(shards[name]) for name in trained]
    grads, (totals,) = scan(body, zeros, pieces, [*shards.values(), *constants.values()])
    return grads, totals.sum(0)


def _call(
    module: nn.Module, objective: Objective, tensors: Mapping[str, Tensor], batch: Batch
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The objective on `module` with `tensors` in place of its parameters and buffers."""
    versions = {name: tensor._version for name, tensor in tensors.items()}
    given = {f"module.{name}": tensor for name, tensor in tensors.items()}
    result = functional_call(_Bound(module, objective), given, (batch,))  # puts what the module replaced into `given`
    changed = [
        n for n, tensor in tensors.items() if tensor._version != versions[n] or given[f"module.{n}"] is not tensor
    ]
    if changed:
        raise GraphError(f"the forward pass changes {', '.join(changed)}; a captured step cannot carry that")
    return result


class _Bound(nn.Module):
    """A module and its objective as one callable, so that `functional_call` covers both."""

    def __init__(self, module: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.module = module
        self.objective = objective

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return self.objective(self.module, batch)


def _axes(mesh: DeviceMesh) -> dict[str, int]:
    return dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))


def _parameter_values(module: nn.Module, mesh: DeviceMesh) -> dict[str, Value]:
    """Each parameter's name -> its value, placed as its `DTensor` is."""
    values = {}
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, DTensor):
            raise GraphError(f"parameter {name} is not sharded; call simple_fsdp on the module first")
        split: list[AxisNames] = [() for _ in parameter.shape]
        for axis, placement in zip(_axes(mesh), parameter.placements, strict=True):
            if isinstance(placement, Shard):
                split[placement.dim] = (*split[placement.dim], axis)
        values[name] = Value(f"parameter/{name}", "parameter", tuple(parameter.shape), parameter.dtype, tuple(split))
    return values


def _buffer_values(module: nn.Module) -> dict[str, Value]:
    """Each buffer's name -> its value; every device holds a copy."""
    return {
        name: Value(f"buffer/{name}", "buffer", tuple(buffer.shape), buffer.dtype, ((),) * buffer.dim())
        for name, buffer in module.named_buffers()
    }


def _batch_values(batch: Mapping[str, Field], mesh: DeviceMesh, microbatches: int) -> dict[str, Value]:
    """Each field's name -> its value; rows are split over every axis of the mesh."""
    names = tuple(_axes(mesh))
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


def _as_dtensor(shard: Tensor, value: Value, mesh: DeviceMesh) -> DTensor:
    """A device's shard of `value` as the whole of it. `value` is split on its first dimension, over the last axis."""
    return DTensor.from_local(
        shard,
        mesh,
        parameter_placements(mesh),
        shape=torch.Size(value.shape),
        stride=torch.empty(value.shape, device="meta").stride(),
        run_check=False,
    )


def _sum_over(local: Tensor, mesh: DeviceMesh, axes: Sequence[str]) -> Tensor:
    """The sum of every device's `local` over the named axes."""
    placements: list[Placement] = [Partial() if axis in axes else Replicate() for axis in _axes(mesh)]
    whole = DTensor.from_local(local, mesh, placements, run_check=False)
    for i in range(mesh.ndim):  # one axis at a time: each is a network of its own
        placements[i] = Replicate()
        whole = whole.redistribute(placements=placements)
    return whole.to_local()


def _reduce_replicas(grad: Tensor, mesh: DeviceMesh) -> Tensor:
    """What `simple_fsdp` leaves to do: the sum of a gradient's shard over all axes but the last."""
    return _sum_over(grad, mesh, tuple(_axes(mesh))[:-1])
