"""What a captured step's Python reads besides tensors: its modules, their parameters and its optimizers.

Calls that run no Python would not see that `module.eval()` was called, a layer replaced, or a learning rate set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from wholestep.device.eager import user_line
from wholestep.errors import GraphError

_PLAIN = (bool, int, float, str, type(None))


def global_settings() -> tuple[Any, ...]:
    """What of PyTorch's own state decides what any operator does."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.is_autocast_enabled("tpu") and torch.get_autocast_dtype("tpu"),
    )


class _Noted(NamedTuple):
    """Some names of a module or of a group of an optimizer's parameters.

    Attributes:
        owner: what has them, in words.
        now: all its names, and what they are at any time.
        before: those that were noted, and what they were.
    """

    owner: str
    now: dict[str, Any]
    before: dict[str, Any]

    def without(self, names: set[str]) -> _Noted:
        return self._replace(before={name: value for name, value in self.before.items() if name not in names})

    def changes(self) -> dict[str, str]:
        """Names -> what became of them, in words."""
        if self.before.items() <= self.now.items():
            return {}
        return {
            name: f"`{name}` of {self.owner} (from {value} to {self.now.get(name)})"
            for name, value in self.before.items()
            if (name, value) not in self.now.items()
        }


class Surroundings:
    """What was read while `seen` was open, to be compared with what there is later.

    What the step itself changes, such as a module that counts its calls, is left out: a program cannot follow it.

    Attributes:
        own_changes: what that was, in words.
    """

    def __init__(self) -> None:
        self.own_changes: list[str] = []
        self._noted: list[_Noted] = []
        self._optimizers: dict[Optimizer, tuple[list[Any], int]] = {}  # its groups of parameters, and how many
        self._modules: set[nn.Module] = set()
        self._parameters: list[nn.Parameter] = []
        self._have_gradients: list[bool] = []

    @contextlib.contextmanager
    def seen(self) -> Iterator[None]:
        """Note modules that are called, with all that are in them, and optimizers that step.

        Raises:
            GraphError: a learning rate schedule takes a step, which no program does.
        """
        hooks = [
            register_module_forward_pre_hook(lambda module, _: self._note_module(module)),
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._note_optimizer(optimizer)),
        ]
        try:
            with _no_schedules():
                yield
        finally:
            for hook in hooks:
                hook.remove()
        for place, noted in enumerate(self._noted):
            changes = noted.changes()
            self._noted[place] = noted.without(set(changes))
            self.own_changes += changes.values()
        self._parameters = [parameter for module in self._modules for parameter in module.parameters(recurse=False)]
        self._have_gradients = [parameter.requires_grad for parameter in self._parameters]

    def change(self) -> str | None:
        """What is not as it was, in words; None where all is."""
        for noted in self._noted:
            for changed in noted.changes().values():
                return changed
        if self._have_gradients != [parameter.requires_grad for parameter in self._parameters]:
            return "`requires_grad` of a parameter"
        for optimizer, (groups, count) in self._optimizers.items():
            if groups is not optimizer.param_groups or len(groups) != count:
                return f"list of groups of parameters of {type(optimizer).__name__}"
        return None

    def _note_module(self, module: nn.Module) -> None:
        if module in self._modules:
            return
        for each in module.modules():
            if each not in self._modules:
                self._modules.add(each)
                owner, names = type(each).__name__, vars(each)
                plain = {name: value for name, value in names.items() if type(value) in _PLAIN}
                self._noted.append(_Noted(owner, names, plain))
                if each._modules:
                    self._noted.append(_Noted(owner, each._modules, dict(each._modules)))

    def _note_optimizer(self, optimizer: Optimizer) -> None:
        if optimizer in self._optimizers:
            return
        self._optimizers[optimizer] = optimizer.param_groups, len(optimizer.param_groups)
        for group in optimizer.param_groups:
            numbers = {name: value for name, value in group.items() if type(value) in (*_PLAIN, tuple)}
            self._noted.append(_Noted(type(optimizer).__name__, group, numbers))


@contextlib.contextmanager
def _no_schedules() -> Iterator[None]:
    def refuse(schedule: Any, *args: Any, **kwargs: Any) -> None:
        raise GraphError(
            f"{user_line()}: {type(schedule).__name__}.step() in a captured step, which later calls would not do: call "
            "it after the step, of an optimizer whose learning rate is a tensor on the device (lr=torch.tensor(...))"
        )

    with contextlib.ExitStack() as stack:
        classes = [LRScheduler]
        for each in classes:
            classes += each.__subclasses__()
            if "step" in vars(each):
                stack.enter_context(mock.patch.object(each, "step", refuse))
        yield
