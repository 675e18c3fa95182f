"""What a captured step's Python reads besides tensors: its modules and optimizers, and what its function names.

Calls that run no Python would not see that `module.eval()` was called, a hook or a layer added, or a learning rate set.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import dis
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from wholestep.device.eager import user_line
from wholestep.errors import GraphError

_PLAIN = (bool, int, float, complex, str)
_NAMESPACES = (SimpleNamespace, argparse.Namespace)
_NO_HOLDERS = (nn.Module, Optimizer, Tensor, type, ModuleType, FunctionType)
_NOTHING = object()

# What has more entries is data.
_MANY = 1000

# How deep lists and dictionaries in attributes are looked into: to the parameters of an optimizer's groups.
_DEPTH = 3


def global_settings() -> tuple[Any, ...]:
    """What of PyTorch's own state decides what any operator does."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.is_autocast_enabled("tpu") and torch.get_autocast_dtype("tpu"),
    )


class _Noted:
    """The attributes or entries of something, as they were."""

    def __init__(self, owner: str, names: Callable[[], Iterable[Any]], values: Callable[[], Iterable[Any]]) -> None:
        """
        Args:
            owner: what has them, in words.
            names: theirs, now.
            values: what they are, now; in the same order.
        """
        self.owner = owner
        self._names, self._values = names, values
        self._ignored: set[Any] = set()
        self._take()

    def _take(self) -> None:
        self._before = dict(zip(self._names(), self._values(), strict=True))
        self._ids = [*map(id, self._before.values())]

    def changes(self) -> dict[Any, str]:
        """Names -> what became of them, in words."""
        if [*map(id, self._values())] == self._ids:
            return {}
        now = dict(zip(self._names(), self._values(), strict=True))
        changed = {
            name: f"{_named(name)} of {self.owner}{_from_to(self._before.get(name), now.get(name))}"
            for name in {**self._before, **now}
            if name not in self._ignored and not _is_same(self._before.get(name, _NOTHING), now.get(name, _NOTHING))
        }
        if not changed:
            self._take()
        return changed

    def ignore_changes(self) -> list[str]:
        """Compare no more what has changed; such that are plain values, in words."""
        changed = self.changes()
        self._ignored |= changed.keys()
        before = self._before
        self._take()
        return [
            words
            for name, words in changed.items()
            if type(before.get(name)) in _PLAIN and not str(name).startswith("_")
        ]


class Surroundings:
    """What was read while `seen` was open, to be compared with what there is later.

    What the step itself changes, such as a module that counts its calls, is left out: a program cannot follow it.

    Attributes:
        own_changes: plain values that it changed, in words.
    """

    def __init__(self, step: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """
        Args:
            step: the function, a method or anything else that is called.
            args: with these, `self` among them.
            kwargs: the same.
        """
        self.own_changes: list[str] = []
        self._noted: list[_Noted] = []
        self._empty: list[tuple[str, Any]] = []
        self._known: dict[int, Any] = {}  # by identity, to be kept
        self._objects: list[Any] = []
        self._parameters: list[Tensor] = []
        for function, owners in _functions(step):
            names = function.__code__.co_varnames
            self._note_function(function, dict(zip(names, (*owners, *args), strict=False)) | kwargs)

    @contextlib.contextmanager
    def seen(self) -> Iterator[None]:
        """Note modules that are called, with all that are in them, and optimizers that step.

        Raises:
            GraphError: a learning rate schedule takes a step, which no program does.
        """
        hooks = [
            register_module_forward_pre_hook(lambda module, _: self._note(module)),
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._note(optimizer)),
        ]
        try:
            with _no_schedules():
                yield
        finally:
            for hook in hooks:
                hook.remove()
        for noted in self._noted:
            self.own_changes += noted.ignore_changes()
        self._empty = [(owner, container) for owner, container in self._empty if not container]
        self._containers = [container for _, container in self._empty]
        self._classes = [*map(type, self._objects)]
        self._of_parameters = [*map(_of_parameter, self._parameters)]

    def change(self) -> str | None:
        """What is not as it was, in words; None where all is."""
        for noted in self._noted:
            for words in noted.changes().values():
                return words
        if any(self._containers):
            return next(owner for owner, container in self._empty if container)
        if self._classes != [*map(type, self._objects)]:
            return "class of a module"
        if self._of_parameters != [*map(_of_parameter, self._parameters)]:
            return "`requires_grad` or hook of a parameter"
        return None

    def _note(self, x: Any) -> None:
        """A module with those in it, an optimizer; nothing else."""
        if id(x) in self._known or not isinstance(x, (nn.Module, Optimizer)):
            return
        for each in x.modules() if isinstance(x, nn.Module) else [x]:
            if id(each) not in self._known:
                self._known[id(each)] = each
                self._objects.append(each)
                if isinstance(each, Optimizer):
                    self._known[id(each.state)] = each.state  # tensors, which are watched as such
                self._note_entries(type(each).__name__, vars(each), _DEPTH)
                if isinstance(each, nn.Module):
                    self._parameters += each.parameters(recurse=False)

    def _note_entries(self, owner: str, container: Any, depth: int) -> None:
        """Of attributes, a dictionary or a list."""
        if isinstance(container, _NAMESPACES) or (
            dataclasses.is_dataclass(container) and hasattr(container, "__dict__")
        ):
            container = vars(container)
        if not isinstance(container, (dict, list)) or len(container) > _MANY or id(container) in self._known:
            return
        self._known[id(container)] = container
        if not container:
            self._empty.append((owner, container))
            return
        items = dict(enumerate(container)) if isinstance(container, list) else dict(container)
        if isinstance(container, list):
            self._noted.append(_Noted(owner, lambda: range(len(container)), container.__iter__))
        else:
            self._noted.append(_Noted(owner, container.keys, container.values))
        for name, value in items.items() if depth else ():
            self._note_entries(f"{name} of {owner}" if isinstance(name, str) else owner, value, depth - 1)

    def _note_function(self, function: FunctionType, arguments: dict[str, Any]) -> None:
        """What a function's code reads: globals, variables around it, and attributes of them and of its arguments."""
        code, label, space = function.__code__, function.__name__, function.__globals__
        names, attributes = _reads(code)
        found = {name: space[name] for name in names if name in space}
        self._note_names(label, list(found), space)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._noted.append(_Noted(label, cells.keys, lambda: map(_contents, cells.values())))
        found |= arguments | {name: _contents(cell) for name, cell in cells.items()}
        for name, x in found.items():
            self._note(x)
            if hasattr(x, "__dict__") and not isinstance(x, _NO_HOLDERS):
                read = list(dict.fromkeys(attributes.get(name, ())))
                self._note_names(type(x).__name__, read, vars(x))
                for attribute in read:
                    self._note(vars(x).get(attribute))

    def _note_names(self, owner: str, names: Sequence[str], space: dict[str, Any]) -> None:
        self._noted.append(_Noted(owner, lambda: names, lambda: [space.get(name, _NOTHING) for name in names]))


def _functions(step: Any) -> Iterator[tuple[FunctionType, tuple[Any, ...]]]:
    """The functions that a step is, with the objects that they are methods of, or what else is given to them first."""
    if isinstance(step, functools.partial):
        yield from ((function, (*first, *step.args)) for function, first in _functions(step.func))
    elif isinstance(step, MethodType):
        yield from ((function, (step.__self__, *first)) for function, first in _functions(step.__func__))
    elif isinstance(step, FunctionType):
        yield step, ()
        if hasattr(step, "__wrapped__"):
            yield from _functions(step.__wrapped__)
    elif isinstance(call := vars(type(step)).get("__call__"), FunctionType):
        yield call, (step,)


def _reads(code: CodeType) -> tuple[list[str], dict[str, list[str]]]:
    """The globals that code reads, with that of functions in it; and the attributes that it reads of any variable."""
    names: list[str] = []
    attributes: dict[str, list[str]] = {}
    variable = None
    for instruction in dis.get_instructions(code):
        operation, value = instruction.opname, instruction.argval
        if operation in ("LOAD_ATTR", "LOAD_METHOD") and variable is not None:
            attributes.setdefault(variable, []).append(value)
        variable = None
        if operation.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST")):
            variable = value[-1] if isinstance(value, tuple) else value
            if operation.startswith(("LOAD_GLOBAL", "LOAD_NAME")):
                names.append(value)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner, of_inner = _reads(constant)
            names += inner
            for name, read in of_inner.items():
                attributes.setdefault(name, []).extend(read)
    return list(dict.fromkeys(names)), attributes


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return _NOTHING


def _of_parameter(parameter: Tensor) -> tuple[bool, int, int]:
    after = parameter._post_accumulate_grad_hooks
    return parameter.requires_grad, len(parameter._backward_hooks or ()), len(after or ())


def _is_same(x: Any, y: Any) -> bool:
    if x is y:
        return True
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) == len(y) and all(map(_is_same, x, y))
    if isinstance(x, MethodType) and isinstance(y, MethodType):  # made anew each time it is looked up
        return x.__self__ is y.__self__ and x.__func__ is y.__func__
    return type(x) is type(y) and isinstance(x, _PLAIN) and (x == y or x != x)


def _named(name: Any) -> str:
    """Not the value of a tensor that is a key, which a recording has not."""
    return f"`{name}`" if isinstance(name, (*_PLAIN, type(None))) else f"an entry of a {type(name).__name__}"


def _from_to(before: Any, now: Any) -> str:
    plain = [x is None or isinstance(x, _PLAIN) for x in (before, now)]
    return f" (from {before} to {now})" if all(plain) else ""


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
