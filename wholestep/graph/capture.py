"""Module + objective + optimizer -> the whole step as one `StepGraph`.

A step is a plain function of tensors, written here as one would write it for a single device; tracing it is what makes
it a graph. Collectives come in by reading sharded parameters and by the sums over devices below.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.func import functional_call

from wholestep.errors import GraphError
from wholestep.graph.layers import LoopedStack, StackedParameter, layers_looped
from wholestep.graph.optimizer import AdamW, clip_factor
from wholestep.graph.partition import Policy
from wholestep.graph.passes import run_passes
from wholestep.graph.policies import save_all
from wholestep.graph.scan import scan
from wholestep.graph.signature import Field, as_dtensor, batch_values, buffer_values, mesh_axes, parameter_values
from wholestep.graph.stacks import Stack, find_stacks
from wholestep.graph.step import StepGraph, Value
from wholestep.graph.trace import gradients, trace

Batch = dict[str, Tensor]
Objective = Callable[[nn.Module, Batch], tuple[Tensor, Tensor, dict[str, Tensor]]]
"""`(module, batch) -> (loss_sum, weight, metrics)`: the summed loss of the batch's items, how many items (or how much
weight) that is, and further sums to report. A step divides them all by the weight of the whole global batch."""


@dataclass(frozen=True)
class Looped:
    """Layers that are alike as one loop, with a policy for what the backward pass finds kept."""

    policy: Policy = save_all


def capture_train_step(
    module: nn.Module,
    objective: Objective,
    optimizer: AdamW,
    batch: Mapping[str, Field],
    mesh: DeviceMesh,
    microbatches: int = 1,
    looped: Looped | None = None,
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
        looped: where given, layers that are alike are a loop forward and a loop backward, and their parameters one
            value each; otherwise layers are laid out one after the other.

    Raises:
        GraphError: rows that do not divide; a trained parameter that the loss does not depend on; a buffer that the
            forward pass changes.
    """
    stacks = find_stacks(module)[0] if looped else []
    parameters = parameter_values(module, mesh, stacks)
    trainable = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    trained = [name for name, value in parameters.items() if trainable.issuperset(value.members or (name,))]
    if not trained:
        raise GraphError("no parameter requires a gradient: there is nothing to train")
    slots = [
        dataclasses.replace(parameters[name], name=f"{slot}/{name}", kind="optimizer")
        for slot in optimizer.slots
        for name in trained
    ]
    buffers = buffer_values(module)
    fields = batch_values(batch, mesh, microbatches)
    scalars = [Value(f"scalar/{name}", "scalar", (), torch.float32, ()) for name in ("learning_rate", "step")]
    metric_names = ["loss", "grad_norm", "weight"]

    def microbatch(
        shards: Mapping[str, Tensor], constants: Mapping[str, Tensor], rows: Batch
    ) -> tuple[list[Tensor], Tensor]:
        weights = _Weights(parameters, shards, mesh)
        for name in trained:
            weights.tensors[name].requires_grad_(True)
        policy = looped.policy if looped else save_all
        loss_sum, weight, metrics = _call(module, objective, weights, constants, rows, stacks, policy)
        metric_names[3:] = metrics
        grads = gradients([loss_sum], [weights.tensors[name] for name in trained])
        unused = [name for name, grad in zip(trained, grads, strict=True) if grad is None]
        if unused:
            raise GraphError(f"the loss does not depend on {', '.join(unused)}: use them, or requires_grad_(False)")
        totals = torch.stack([total.detach().float() for total in (loss_sum, weight, *metrics.values())])
        return [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads], totals

    def step(
        shards: dict[str, Tensor], old: list[Tensor], constants: dict[str, Tensor], rows: Batch, scalar: list[Tensor]
    ) -> list[Tensor]:
        if microbatches == 1:
            grads, totals = microbatch(shards, constants, rows)
        else:
            grads, totals = _accumulate(microbatch, trained, shards, constants, rows, microbatches)
        loss_sum, weight, *extra = _sum_over(totals, mesh, tuple(mesh_axes(mesh))).unbind()
        scale = 1 / torch.where(weight > 0, weight, 1.0)
        grads = [_reduce_replicas(grad, mesh) for grad in grads]
        squares = torch.cat([_squares(grad, parameters[name]) for name, grad in zip(trained, grads, strict=True)])
        squares = _sum_over(squares, mesh, tuple(mesh_axes(mesh))[-1:]) * scale.square()
        loss, norm = loss_sum * scale, squares.sum().sqrt()
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        factor = clip_factor(norm, optimizer.clip_norm) * scale  # applied as one, where a gradient is used
        new_parameters: list[Tensor] = []
        new_slots: list[list[Tensor]] = [[] for _ in optimizer.slots]
        for i, (name, grad) in enumerate(zip(trained, grads, strict=True)):
            before = [old[row * len(trained) + i] for row in range(len(optimizer.slots))]
            after = optimizer.update_slots(grad * factor, before)
            after = [torch.where(finite, new, old) for new, old in zip(after, before, strict=True)]
            updated = optimizer.update_parameter(shards[name], after, *scalar)
            new_parameters.append(torch.where(finite, updated, shards[name]))
            for column, slot in zip(new_slots, after, strict=True):
                column.append(slot)
        results = [loss, norm, weight, *(value * scale for value in extra), squares.sqrt()]
        return [*new_parameters, *(new for column in new_slots for new in column), *results]

    inputs = [*parameters.values(), *slots, *buffers.values(), *fields.values(), *scalars]
    axes = mesh_axes(mesh)
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
        Value(
            "metric/grad_norms", "metric", (sum(len(parameters[n].unstacked()) for n in trained),), torch.float32, ((),)
        ),
    ]
    return _checked(StepGraph(graph, tuple(inputs), tuple(outputs), axes))


def capture_eval_step(
    module: nn.Module,
    objective: Objective,
    batch: Mapping[str, Field],
    mesh: DeviceMesh,
    looped: Looped | None = None,
) -> StepGraph:
    """The loss of a batch, without gradients: parameters, buffers and batch -> `loss_sum`, `weight` and the
    objective's metrics, summed over the global batch and not divided, so that batches add up."""
    stacks = find_stacks(module)[0] if looped else []
    parameters, buffers = parameter_values(module, mesh, stacks), buffer_values(module)
    fields = batch_values(batch, mesh, 1)
    metric_names = ["loss_sum", "weight"]

    def step(shards: dict[str, Tensor], constants: dict[str, Tensor], rows: Batch) -> list[Tensor]:
        weights = _Weights(parameters, shards, mesh)
        with torch.no_grad():
            loss_sum, weight, metrics = _call(module, objective, weights, constants, rows, stacks, save_all)
        metric_names[2:] = metrics
        totals = torch.stack([total.float() for total in (loss_sum, weight, *metrics.values())])
        return list(_sum_over(totals, mesh, tuple(mesh_axes(mesh))).unbind())

    inputs = [*parameters.values(), *buffers.values(), *fields.values()]
    axes = mesh_axes(mesh)
    with FakeTensorMode():
        fakes = [
            {name: torch.empty(value.local_shape(axes), dtype=value.dtype) for name, value in group.items()}
            for group in (parameters, buffers, fields)
        ]
        graph = trace(step, fakes, module)
    outputs = [Value(f"metric/{name}", "metric", (), torch.float32, ()) for name in metric_names]
    return _checked(StepGraph(graph, tuple(inputs), tuple(outputs), axes))


def _checked(step: StepGraph) -> StepGraph:
    step.check()
    return run_passes(step)


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


class _Weights:
    """The parameters of one pass, from one device's shards.

    Attributes:
        tensors: name -> what a gradient is taken with respect to: a `DTensor`, or the stacked shards of a stack.
    """

    def __init__(self, values: Mapping[str, Value], shards: Mapping[str, Tensor], mesh: DeviceMesh) -> None:
        self._values, self.mesh = values, mesh
        self.tensors: dict[str, Tensor] = {
            name: shard.detach() if values[name].members else as_dtensor(shard, values[name].shape, mesh)
            for name, shard in shards.items()
        }

    def plain(self) -> dict[str, Tensor]:
        """Those that the module reads itself."""
        return {name: tensor for name, tensor in self.tensors.items() if not self._values[name].members}

    def of_stack(self, stack: Stack) -> list[StackedParameter]:
        """Those that the layers of a stack read."""
        found = []
        for position in range(stack.period):
            prefix = f"{stack.name_of(position)}."
            for name, tensor in self.tensors.items():
                if name.startswith(prefix):
                    shape = self._values[name].shape[1:]
                    weight = partial(as_dtensor, shape=shape, mesh=self.mesh)
                    found.append(StackedParameter(position, name.removeprefix(prefix), tensor, weight))
        return found


def _call(
    module: nn.Module,
    objective: Objective,
    weights: _Weights,
    buffers: Mapping[str, Tensor],
    batch: Batch,
    stacks: Sequence[Stack],
    policy: Policy,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The objective on `module` with these parameters and buffers in place of its own, the stacks as loops."""
    axes = mesh_axes(weights.mesh)
    runs = [
        LoopedStack(
            stack,
            [module.get_submodule(path) for path in stack.paths[: stack.period]],
            weights.of_stack(stack),
            policy,
            axes,
        )
        for stack in stacks
    ]
    tensors = {**weights.plain(), **buffers}
    versions = {name: tensor._version for name, tensor in tensors.items()}
    given = {f"module.{name}": tensor for name, tensor in tensors.items()}
    with layers_looped(module, runs):
        result = functional_call(_Bound(module, objective), given, (batch,))  # puts what is replaced into `given`
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


def _sum_over(local: Tensor, mesh: DeviceMesh, axes: Sequence[str]) -> Tensor:
    """The sum of every device's `local` over the named axes."""
    placements: list[Placement] = [Partial() if axis in axes else Replicate() for axis in mesh_axes(mesh)]
    whole = DTensor.from_local(local, mesh, placements, run_check=False)
    for i in range(mesh.ndim):  # one axis at a time: each is a network of its own
        placements[i] = Replicate()
        whole = whole.redistribute(placements=placements)
    return whole.to_local()


def _reduce_replicas(grad: Tensor, mesh: DeviceMesh) -> Tensor:
    """What `simple_fsdp` leaves to do: the sum of a gradient's shard over all axes but the last."""
    return _sum_over(grad, mesh, tuple(mesh_axes(mesh))[:-1])


def _squares(grad: Tensor, value: Value) -> Tensor:
    """The sum of squares of each parameter that this gradient is of: one element, or one for each layer."""
    squares = grad.float().square()
    return squares.flatten(1).sum(1) if value.members else squares.sum().reshape(1)
