"""What a captured step calls, recorded: operators on the device, from whatever its buffers hold when it runs."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from wholestep.device.buffer import Buffer
from wholestep.device.eager import Recording, user_line
from wholestep.errors import GraphError

_OPTIMIZERS = str(Path(torch.optim.__file__).parent)


class CapturedRecording(Recording):
    """A recording whose arrays from outside are those of buffers, whatever they hold when it runs.

    Attributes:
        sources: the buffer of each array from outside.
        leaves: the tensors that have a gradient, by identity.
        moved: CPU tensors that it copies to the device, and how often each had been written.
    """

    captures = True

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[Buffer] = []
        self.leaves: dict[int, Tensor] = {}
        self.moved: list[tuple[Tensor, int]] = []
        self._before: dict[int, Any] = {}

    def give(self, buffer: Buffer, place: int) -> None:
        """Let a buffer hold one of the values."""
        if buffer.value is not self:
            self._before[id(buffer)] = buffer.value
        super().give(buffer, place)

    def undo(self) -> None:
        """Let what buffers held before be there again: the step failed."""
        for buffer in self.live():
            buffer.value = self._before[id(buffer)]

    def _input(self, buffer: Buffer) -> int | None:
        if buffer.value is None:
            return None
        place = self._places.get(id(buffer))
        if place is None:
            place = self._places[id(buffer)] = len(self.sources)
            self.sources.append(buffer)
            self.given.append(buffer.array)
        return -1 - place

    def see(self, tensors: Sequence[Tensor | None]) -> None:
        """Hear which tensors an operator is given."""
        for tensor in tensors:
            if tensor is not None:
                owner = tensor if tensor._base is None else tensor._base
                if owner.requires_grad and owner.is_leaf:
                    self.leaves[id(owner)] = owner

    def moves(self, tensor: Tensor) -> None:
        """Hear which CPU tensor is copied to the device."""
        if not tensor.is_inference():
            self.moved.append((tensor, tensor._version))

    def flush(self, reason: str) -> None:
        """Raises:
        GraphError: always; a captured step has no values yet.
        """
        hint = (
            "return the tensor, and read it outside of the step (an index without dimensions is read too: index[None])"
        )
        if _in_optimizer():
            hint = "let the optimizer keep its numbers on the device, with fused=True or capturable=True"
        raise GraphError(
            f"{user_line()}: {reason} in a captured step, which has no values before it has run as a whole: {hint}"
        )


class NoWritesOnCpu(TorchDispatchMode):
    """While this is open, CPU tensors that were there before are not written: a replay would not do it."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, Tensor] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function._schema.is_mutable:
            for place, argument in enumerate(function._schema.arguments):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                for tensor in tree_leaves(args[place] if place < len(args) else kwargs.get(argument.name)):
                    if isinstance(tensor, Tensor) and tensor.device.type == "cpu" and id(tensor) not in self._made:
                        raise GraphError(
                            f"{user_line()}: {function} writes into a CPU tensor in a captured step, which later calls "
                            "would not do: keep it on the device (for an optimizer, capturable=True)"
                        )
        result = function(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device.type == "cpu":
                self._made[id(tensor)] = tensor
        return result


def _in_optimizer() -> bool:
    """Whether one of PyTorch's optimizers has called."""
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(None))
    return any(file.startswith(_OPTIMIZERS) for file in files)
