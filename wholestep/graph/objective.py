"""A module's objective as a function of parameters, buffers and a batch: what a captured step computes gradients of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.func import functional_call

from wholestep.errors import GraphError
from wholestep.graph.called_layers import CalledLayers
from wholestep.graph.layers import layers_replaced
from wholestep.graph.looped_layers import LoopedStack, StackedTensor
from wholestep.graph.partition import Keep
from wholestep.graph.signature import as_dtensor, mesh_axes
from wholestep.graph.stacks import Stack, containers
from wholestep.graph.step import Value

Batch = dict[str, Tensor]
Objective = Callable[[nn.Module, Batch], tuple[Tensor, Tensor, dict[str, Tensor]]]
"""`(module, batch) -> (loss_sum, weight, metrics)`: the summed loss of the batch's items, how many items (or how much
weight) that is, and further sums to report. A step divides them all by the weight of the whole global batch."""


@dataclass(frozen=True)
class Layers:
    """How the layers in a module's containers run.

    Attributes:
        keep: what their backward pass finds kept.
        looped: layers that are alike are a loop forward and a loop backward, and their parameters one value each.
            Otherwise, and for layers that are not alike, each is a call of its own.
    """

    keep: Keep
    looped: bool = False


class ModuleState:
    """A module's parameters and buffers in one pass.

    Attributes:
        weights: name of each parameter -> what a gradient is taken with respect to: a `DTensor`, or the stacked shards
            of a stack's layers.
        buffers: name of each buffer, or of a stack's stacked buffers -> its values; after a pass the new ones.
        written: names of the buffers that the pass changed.
        notes: what a user should know of how the layers were traced.
    """

    def __init__(
        self,
        parameters: Mapping[str, Value],
        shards: Mapping[str, Tensor],
        buffer_values: Mapping[str, Value],
        buffers: Mapping[str, Tensor],
        mesh: DeviceMesh,
    ) -> None:
        self._values, self.mesh = {**parameters, **buffer_values}, mesh
        self.weights: dict[str, Tensor] = {
            name: shard.detach() if parameters[name].members else as_dtensor(shard, parameters[name].shape, mesh)
            for name, shard in shards.items()
        }
        self.buffers = dict(buffers)
        self.written: list[str] = []
        self.notes: list[str] = []

    def unstacked(self) -> dict[str, Tensor]:
        """Those that the module reads itself."""
        both = {**self.weights, **self.buffers}
        return {name: tensor for name, tensor in both.items() if not self._values[name].members}

    def of_stack(self, stack: Stack) -> list[StackedTensor]:
        """Those that the layers of a stack read."""
        found = []
        for position in range(stack.period):
            prefix = f"{stack.name_of(position)}."
            for name, tensor in {**self.weights, **self.buffers}.items():
                if name.startswith(prefix):
                    as_weight = partial(as_dtensor, shape=self._values[name].shape[1:], mesh=self.mesh)
                    as_given = as_weight if name in self.weights else _itself
                    found.append(StackedTensor(name, position, name.removeprefix(prefix), tensor, as_given))
        return found


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def call_module(
    module: nn.Module,
    objective: Objective,
    state: ModuleState,
    batch: Batch,
    stacks: Sequence[Stack],
    layers: Layers | None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The objective on `module` with this state in place of its own; `state.buffers` and `written` are updated.

    Raises:
        GraphError: the forward pass changes a parameter.
        NotLoopableError: a stack cannot be a loop.
    """
    loops, calls = _replacements(module, state, stacks, layers) if layers else ([], [])
    tensors = state.unstacked()
    versions = {name: tensor._version for name, tensor in tensors.items()}
    given = {f"module.{name}": tensor for name, tensor in tensors.items()}
    with layers_replaced(module, [*loops, *calls]):
        result = functional_call(_Bound(module, objective), given, (batch,))  # puts what is replaced into `given`
    after = {name: given[f"module.{name}"] for name in tensors}
    written = {n: after[n] for n, tensor in tensors.items() if after[n] is not tensor or tensor._version != versions[n]}
    for loop in loops:
        written |= loop.written
    state.notes = [note for called in calls for note in called.notes]
    odd = [name for name in written if name not in state.buffers]
    if odd:
        raise GraphError(f"the forward pass changes the parameter {', '.join(odd)}; only buffers can be changed")
    state.buffers |= written
    state.written = list(written)
    return result


def _replacements(
    module: nn.Module, state: ModuleState, stacks: Sequence[Stack], layers: Layers
) -> tuple[list[LoopedStack], list[CalledLayers]]:
    """The stacks as loops, every other layer in a container as a call."""
    axes = mesh_axes(state.mesh)
    total = sum(len(list(parent.children())) for _, parent in containers(module))
    loops = []
    for stack in stacks:
        members = [module.get_submodule(path) for path in stack.paths]
        loops.append(LoopedStack(stack, members, state.of_stack(stack), layers.keep.share(stack.period, total), axes))
    looped = {path for stack in stacks for path in stack.paths}
    calls = []
    for container, parent in containers(module):
        children = {f"{container}.{key}": layer for key, layer in parent.named_children()}
        places = {path: i for i, path in enumerate(children) if path not in looped}
        if places:
            modules = [children[path] for path in places]
            keep = layers.keep.share(1, total)
            calls.append(CalledLayers(container, list(places), list(places.values()), modules, keep, state.mesh))
    return loops, calls


class _Bound(nn.Module):
    """A module and its objective as one callable, so that `functional_call` covers both."""

    def __init__(self, module: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.module = module
        self.objective = objective

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return self.objective(self.module, batch)
