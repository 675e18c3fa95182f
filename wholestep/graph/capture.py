"""Module + objective + optimizer -> the whole step as one `StepGraph`.

A step is a plain function of tensors, written here as one would write it for a single device; tracing it is what makes
it a graph. Collectives come in by reading sharded parameters and by the sums over devices below.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

from wholestep.errors import GraphError
from wholestep.graph.call import SharedCalls
from wholestep.graph.looped_layers import NotLoopableError
from wholestep.graph.memory import to_device, to_host
from wholestep.graph.objective import Batch, Layers, ModuleState, Objective, call_module
from wholestep.graph.optimizer import AdamW, clip_factor
from wholestep.graph.passes import run_passes
from wholestep.graph.random import draws_numbers
from wholestep.graph.rules import Rules
from wholestep.graph.scan import scan
from wholestep.graph.signature import Field, batch_values, buffer_values, mesh_axes, parameter_values
from wholestep.graph.stacks import Stack, containers, find_stacks
from wholestep.graph.step import StepGraph, Value
from wholestep.graph.trace import ForeignTensorError, gradients, trace


def capture_train_step(
    module: nn.Module,
    objective: Objective,
    optimizer: AdamW,
    batch: Mapping[str, Field],
    mesh: DeviceMesh,
    microbatches: int = 1,
    layers: Layers | None = None,
    slots_on_host: bool = False,
) -> StepGraph:
    """Forward, loss, backward, clipping and the optimizer as one graph.

    Inputs: the state (parameters, the optimizer's slots, buffers), the batch, and the scalars `learning_rate` and
    `step` (from 1), and `seed` if the step draws random numbers. Outputs: the new state and the metrics `loss`,
    `grad_norm`, `weight`, `grad_norms` (of each trained parameter, in the module's order; the metric's `members` are
    their names) and the objective's own. If the loss or the gradient norm is not finite, the state comes out as it
    went in.

    Args:
        module: sharded by `simple_fsdp` over `mesh`; its parameters may be on meta. One that needs no gradient is
            not trained.
        objective: what is minimized.
        optimizer: how.
        batch: the global batch's fields.
        mesh: from `simulated_device_mesh`.
        microbatches: how many backward passes a step accumulates, in a loop inside the program.
        layers: how layers run; None traces straight through them.
        slots_on_host: the optimizer's slots live in host memory, and come to the device for their update only; those of
            vectors stay.

    A module with a method `after_step(buffers) -> new buffers` has it called once when a step's counts are in, over all
    microbatches and devices.

    Raises:
        GraphError: rows that do not divide; a trained parameter that the loss does not depend on; a buffer that each
            device changes for its own rows and whose module does not say how the changes come together.
        ConfigError: a rule for what is kept matches nothing.
    """
    capture = partial(_train_step, module, objective, optimizer, batch, mesh, microbatches, layers, slots_on_host)
    step = _with_fallback(module, layers, capture)
    if layers is not None and isinstance(layers.keep.policy, Rules):
        layers.keep.policy.check_used()
    return step


def _train_step(
    module: nn.Module,
    objective: Objective,
    optimizer: AdamW,
    batch: Mapping[str, Field],
    mesh: DeviceMesh,
    microbatches: int,
    layers: Layers | None,
    slots_on_host: bool,
    stacks: Sequence[Stack],
) -> StepGraph:
    parameters, buffers = parameter_values(module, mesh, stacks), buffer_values(module, stacks)
    trainable = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    trained = [name for name, value in parameters.items() if trainable.issuperset(value.members or (name,))]
    if not trained:
        raise GraphError("no parameter requires a gradient: there is nothing to train")
    groups = _by_layer(trained, module if layers else None)
    # Vectors stay: they are nothing beside matrices, and libtpu 0.0.42 fails at slices of 64 elements in host memory.
    hosted = {name for name in trained if slots_on_host and not _are_vectors(parameters[name])}
    slots = [
        dataclasses.replace(
            parameters[name],
            name=f"{slot}/{name}",
            kind="optimizer",
            memory="host" if name in hosted else "device",
            dtype=dtype,
        )
        for slot, dtype in optimizer.slots.items()
        for name in trained
    ]
    fields = batch_values(batch, mesh, microbatches)
    scalars = [Value(f"scalar/{name}", "scalar", (), torch.float32, ()) for name in ("learning_rate", "step")]
    metric_names = ["loss", "grad_norm", "weight"]
    written: list[str] = []
    notes: list[str] = []

    def microbatch(
        shards: Mapping[str, Tensor], old: Mapping[str, Tensor], rows: Batch
    ) -> tuple[list[Tensor], Tensor, dict[str, Tensor]]:
        state = ModuleState(parameters, shards, buffers, old, mesh)
        for name in trained:
            state.weights[name].requires_grad_(True)
        loss_sum, weight, metrics = call_module(module, objective, state, rows, stacks, layers)
        metric_names[3:] = metrics
        grads = gradients([loss_sum], [state.weights[name] for name in trained])
        unused = [name for name, grad in zip(trained, grads, strict=True) if grad is None]
        if unused:
            raise GraphError(f"the loss does not depend on {', '.join(unused)}: use them, or requires_grad_(False)")
        written[:], notes[:] = state.written, state.notes
        totals = torch.stack([total.detach().float() for total in (loss_sum, weight, *metrics.values())])
        return [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads], totals, state.buffers

    def finish(grads: Sequence[Tensor], names: Sequence[str]) -> list[Tensor]:
        grads = [_reduce_replicas(grad, mesh) for grad in grads]
        return [*grads, torch.cat([_squares(grad, parameters[name]) for name, grad in zip(names, grads, strict=True)])]

    def update(tensors: Sequence[Tensor], names: Sequence[str]) -> list[Tensor]:
        """`learning_rate`, `step`, `finite`, `factor`, parameters, gradients, slots -> new parameters, new slots."""
        scalars, rest = tensors[:4], tensors[4:]
        columns = [rest[i : i + len(names)] for i in range(0, len(rest), len(names))]
        new = []
        for name, *own in zip(names, *columns, strict=True):
            if name in hosted and parameters[name].members:  # never the slots of all layers on the device
                new.append(scan(lambda _, own, scalars: ([], update_one(own, scalars, True)), [], own, scalars)[1])
            else:
                new.append(update_one(own, scalars, name in hosted))
        return [value for column in zip(*new, strict=True) for value in column]

    def update_one(own: Sequence[Tensor], scalars: Sequence[Tensor], on_host: bool) -> list[Tensor]:
        lr, step, finite, factor = scalars
        parameter, grad, *before = own
        if on_host:
            before = [to_device(slot) for slot in before]
        before = [slot.float() for slot in before]
        after = optimizer.update_slots(grad * factor, before)
        after = [torch.where(finite, new, old) for new, old in zip(after, before, strict=True)]
        updated = torch.where(finite, optimizer.update_parameter(parameter, after, lr, step), parameter)
        stored = [slot.to(dtype) for slot, dtype in zip(after, optimizer.slots.values(), strict=True)]
        return [updated, *(map(to_host, stored) if on_host else stored)]

    def step(
        shards: dict[str, Tensor],
        old_slots: list[Tensor],
        old_buffers: dict[str, Tensor],
        rows: Batch,
        scalar: list[Tensor],
    ) -> list[Tensor]:
        shared = SharedCalls()
        fresh = {name: buffer.clone() for name, buffer in old_buffers.items()}  # what the forward pass may write into
        if microbatches == 1:
            grads, totals, new_buffers = microbatch(shards, fresh, rows)
        else:
            grads, totals, new_buffers = _accumulate(microbatch, trained, shards, fresh, rows, microbatches)
        loss_sum, weight, *extra = _sum_over(totals, mesh, tuple(mesh_axes(mesh))).unbind()
        scale = 1 / torch.where(weight > 0, weight, 1.0)
        parts = []
        for group in groups:
            key = "finish" if group.is_layer else None
            *grads[group.slice], squares = shared(key, partial(finish, names=group.names), grads[group.slice])
            parts.append(squares)
        squares = _sum_over(torch.cat(parts), mesh, tuple(mesh_axes(mesh))[-1:]) * scale.square()
        loss, norm = loss_sum * scale, squares.sum().sqrt()
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        factor = clip_factor(norm, optimizer.clip_norm) * scale  # applied as one, where a gradient is used
        columns = [[shards[name] for name in trained], grads]
        columns += [old_slots[i : i + len(trained)] for i in range(0, len(old_slots), len(trained))]
        new: list[list[Tensor]] = [[] for _ in columns[1:]]
        for group in groups:
            given = [*scalar, finite, factor, *(tensor for column in columns for tensor in column[group.slice])]
            results = shared("update" if group.is_layer else None, partial(update, names=group.names), given)
            for i, column in enumerate(new):
                column += results[i * len(group.names) : (i + 1) * len(group.names)]
        reduced = {n: _reduce_buffer(buffers[n], old_buffers[n], new_buffers[n], module, mesh) for n in written}
        changed = reduced | _after_step(buffers, {**old_buffers, **reduced}, module)
        written[:] = changed
        kept = [torch.where(finite, value, old_buffers[name]) for name, value in changed.items()]
        norms = _layer_by_layer(squares, trained, stacks).sqrt()
        results = [loss, norm, weight, *(value * scale for value in extra), norms]
        return [*(value for column in new for value in column), *kept, *results]

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
    single = {member for name in trained for member in parameters[name].members or (name,)}
    norms = tuple(name for name, _ in module.named_parameters() if name in single)
    outputs = [
        *(parameters[name] for name in trained),
        *slots,
        *(buffers[name] for name in written),
        *(Value(f"metric/{name}", "metric", (), torch.float32, ()) for name in metric_names),
        Value("metric/grad_norms", "metric", (len(norms),), torch.float32, ((),), members=norms),
    ]
    return dataclasses.replace(_checked(graph, inputs, outputs, axes), notes=tuple(notes))


def capture_eval_step(
    module: nn.Module,
    objective: Objective,
    batch: Mapping[str, Field],
    mesh: DeviceMesh,
    layers: Layers | None = None,
) -> StepGraph:
    """The loss of a batch with the module in evaluation mode, without gradients: parameters, buffers and batch ->
    `loss_sum`, `weight` and the objective's metrics, summed over the global batch and not divided, so that batches add
    up. Buffers stay as they are."""
    modes = {submodule: submodule.training for submodule in module.modules()}
    module.eval()
    try:
        return _with_fallback(module, layers, lambda stacks: _eval_step(module, objective, batch, mesh, layers, stacks))
    finally:
        for submodule, training in modes.items():
            submodule.training = training


def _eval_step(
    module: nn.Module,
    objective: Objective,
    batch: Mapping[str, Field],
    mesh: DeviceMesh,
    layers: Layers | None,
    stacks: Sequence[Stack],
) -> StepGraph:
    parameters, buffers = parameter_values(module, mesh, stacks), buffer_values(module, stacks)
    fields = batch_values(batch, mesh, 1)
    metric_names = ["loss_sum", "weight"]

    def step(shards: dict[str, Tensor], constants: dict[str, Tensor], rows: Batch) -> list[Tensor]:
        state = ModuleState(parameters, shards, buffers, constants, mesh)
        with torch.no_grad():
            loss_sum, weight, metrics = call_module(module, objective, state, rows, stacks, layers)
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
    return _checked(graph, inputs, outputs, axes)


def _with_fallback(
    module: nn.Module, layers: Layers | None, capture: Callable[[Sequence[Stack]], StepGraph]
) -> StepGraph:
    """`capture` with those stacks as loops that can be; the step's notes say which cannot, and why."""
    if layers is None or not layers.looped:
        return capture([])
    stacks, differences = find_stacks(module)
    notes = [f"{each.layer} is not like the layer before it: {each.what}" for each in differences]
    while True:
        try:
            step = capture(stacks)
        except (NotLoopableError, ForeignTensorError) as error:
            odd = error.stack if isinstance(error, NotLoopableError) else getattr(error.tensor, "stand_in_of", None)
            if odd is None:
                raise
            why = error if isinstance(error, NotLoopableError) else f"what layers of {odd.container} return is read"
            notes.append(f"{why}: {odd.container} is laid out, not looped")
            stacks = [stack for stack in stacks if stack is not odd]
        except AssertionError as error:
            # PyTorch's own, where the module reads a parameter that is not there: one of a stack's layers.
            if not stacks or "convert all Tensors to FakeTensors" not in str(error):
                raise
            notes += [f"parameters of {stack.container} are read outside of its layers: laid out" for stack in stacks]
            stacks = []
        else:
            return dataclasses.replace(step, notes=(*notes, *step.notes))


def _checked(graph: fx.GraphModule, inputs: list[Value], outputs: list[Value], axes: dict[str, int]) -> StepGraph:
    if draws_numbers(graph):
        *_, last = graph.graph.find_nodes(op="placeholder")
        with graph.graph.inserting_after(last):
            seed = graph.graph.placeholder("seed")
        value = Value("scalar/seed", "scalar", (), torch.uint32, ())
        seed.meta = {"val": torch.empty((), dtype=value.dtype, device="meta"), "module": "", "backward": False}
        inputs = [*inputs, value]
    step = StepGraph(graph, tuple(inputs), tuple(outputs), axes)
    step.check()
    return run_passes(step)


@dataclass(frozen=True)
class _Group:
    """Trained parameters whose update is one piece of the step: those of a layer, or a single one.

    Attributes:
        names: of the parameters, which follow one another among those that are trained.
        slice: where.
        is_layer: whether they are a layer's.
    """

    names: tuple[str, ...]
    slice: slice
    is_layer: bool


def _by_layer(trained: Sequence[str], module: nn.Module | None) -> list[_Group]:
    """The groups of `trained`, in order; every parameter alone without a module."""
    found = containers(module) if module else ()
    paths = [f"{path}.{key}." for path, parent in found for key, _ in parent.named_children()]

    def layer(name: str) -> str:
        return next((path for path in paths if name.startswith(path)), name)

    groups, start = [], 0
    for owner, names in itertools.groupby(trained, layer):
        members = tuple(names)
        groups.append(_Group(members, slice(start, start + len(members)), owner in paths))
        start += len(members)
    return groups


def _accumulate(
    microbatch: Callable[..., tuple[list[Tensor], Tensor, dict[str, Tensor]]],
    trained: Sequence[str],
    shards: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    rows: Batch,
    microbatches: int,
) -> tuple[list[Tensor], Tensor, dict[str, Tensor]]:
    """The sums of `microbatch`'s results over equal slices of the rows, and the last buffers, as one loop."""

    def body(
        carry: Sequence[Tensor], piece: Sequence[Tensor], consts: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        weights = dict(zip(shards, consts, strict=True))
        old = dict(zip(buffers, carry[len(trained) :], strict=True))
        grads, totals, new = microbatch(weights, old, dict(zip(rows, piece, strict=True)))
        sums = [total + grad for total, grad in zip(carry, grads, strict=False)]
        return [*sums, *(new[name] for name in buffers)], [totals]

    pieces = [field.reshape(microbatches, -1, *field.shape[1:]) for field in rows.values()]
    zeros = [torch.zeros_like(shards[name]) for name in trained]
    carry, (totals,) = scan(body, [*zeros, *buffers.values()], pieces, list(shards.values()), rows=True)
    return carry[: len(trained)], totals.sum(0), dict(zip(buffers, carry[len(trained) :], strict=True))


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


def _layer_by_layer(squares: Tensor, trained: Sequence[str], stacks: Sequence[Stack]) -> Tensor:
    """One number for each parameter, from the order of `trained`, where each parameter of a stack has its layers one
    after the other, to the module's."""
    prefixes = {f"{stack.name_of(i)}.": stack for stack in stacks for i in range(stack.period)}

    def stack_of(name: str) -> Stack | None:
        return next((stack for prefix, stack in prefixes.items() if name.startswith(prefix)), None)

    pieces, start = [], 0
    for stack, group in itertools.groupby(trained, stack_of):
        rows = len(list(group))
        columns = stack.trips if stack else 1
        piece = squares[start : start + rows * columns]
        pieces.append(piece.reshape(rows, columns).t().reshape(-1) if stack else piece)
        start += rows * columns
    return torch.cat(pieces)


def _are_vectors(value: Value) -> bool:
    """Whether a layer's own part has one dimension, or none."""
    return len(value.shape) - bool(value.members) < 2


def _after_step(values: Mapping[str, Value], buffers: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """What modules make of their own buffers when a step is through: those that have a method `after_step`, which
    takes its buffers by name and returns new values of some. Buffers of a stack come as one, layers first."""
    new: dict[str, Tensor] = {}
    owners: dict[tuple[str, str], dict[str, str]] = {}
    for name, value in values.items():
        owner, _, attribute = value.unstacked()[0].name.removeprefix("buffer/").rpartition(".")
        whole = name.removesuffix(attribute)
        owners.setdefault((owner, whole), {})[attribute] = name
    for (owner, _), names in owners.items():
        after_step = getattr(module.get_submodule(owner), "after_step", None)
        if after_step is not None:
            changed = after_step({attribute: buffers[name] for attribute, name in names.items()})
            new |= {names[attribute]: value for attribute, value in changed.items()}
    return new


def _reduce_buffer(value: Value, old: Tensor, new: Tensor, module: nn.Module, mesh: DeviceMesh) -> Tensor:
    """A buffer after a step in which every device has changed its copy for its own rows, as the buffer's module says
    in `buffer_reductions`: changes add up, or are averaged."""
    if mesh.size() == 1:
        return new
    path = value.unstacked()[0].name.removeprefix("buffer/")
    owner, _, attribute = path.rpartition(".")
    reduction = getattr(module.get_submodule(owner), "buffer_reductions", {}).get(attribute)
    if reduction not in ("sum", "mean"):
        raise GraphError(
            f"the forward pass changes the buffer {path} for each device's rows; its module must say how the changes "
            f"come together, buffer_reductions = {{{attribute!r}: 'sum'}} (or 'mean')"
        )
    change = _sum_over(new - old, mesh, tuple(mesh_axes(mesh)))
    return old + (change if reduction == "sum" else change / mesh.size())
