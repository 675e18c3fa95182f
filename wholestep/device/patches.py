"""What PyTorch's own classes and functions do for the device, where it lets no backend register that."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Sequence
from typing import Any

import torch


def apply() -> None:
    """All of them."""
    print_from_cpu()
    compile_for_tpu()
    handle_storages()
    keep_parameters()
    make_generators()
    serve_accelerator()


def compile_for_tpu() -> None:
    """Let `torch.compile` without a backend choose ours for graphs on the device."""
    make = torch.compile

    @functools.wraps(make)
    def make_compiled(*args: Any, **options: Any) -> Any:
        _leave_to_python()
        return make(*args, **options)

    torch.compile = make_compiled
    plain = torch._TorchCompileInductorWrapper.__call__

    def on_tpu(x: Any) -> bool:
        return isinstance(x, torch.Tensor) and x.device.type == "tpu"

    def compiled(self: Any, module: Any, inputs: Sequence[Any], **options: Any) -> Any:
        if any(map(on_tpu, inputs)) or any(on_tpu(node.meta.get("example_value")) for node in module.graph.nodes):
            from wholestep.device.compile import wholestep

            return wholestep(module, inputs)
        return plain(self, module, inputs, **options)

    torch._TorchCompileInductorWrapper.__call__ = compiled


@functools.cache
def _leave_to_python() -> None:
    """Between the graphs of a function that breaks, operators run at once: what runs them is not to be compiled too."""
    running = ("compile_cache", "devices", "draws", "dtypes", "function", "interpret", "lowering")
    for module in ("jax", "jaxlib", "wholestep.device", *(f"wholestep.xla.{name}" for name in running)):
        torch._dynamo.trace_rules.add(module)


def print_from_cpu() -> None:
    """Let a tensor be printed by one copy, not by a dozen small programs."""
    plain = torch._tensor_str._tensor_str

    def printed(tensor: torch.Tensor, indent: int) -> str:
        return plain(tensor.detach().cpu() if tensor.device.type == "tpu" else tensor, indent)

    torch._tensor_str._tensor_str = printed


def keep_parameters() -> None:
    """Let a module that is moved keep its Parameters, as between other devices: tied layers share them, and optimizers
    hold them. PyTorch would make new ones, since it cannot give a CPU tensor storage of this device."""
    plain = torch.nn.Module._apply

    @functools.wraps(plain)
    def apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        before = dict(self._parameters)
        result = plain(self, fn, recurse)
        for name, old in before.items():
            new = self._parameters[name]
            if old is None or new is old or old.device.type == new.device.type:
                continue
            if "tpu" not in (old.device.type, new.device.type):
                continue
            if isinstance(old, torch.nn.UninitializedParameter):
                self._parameters[name] = torch.nn.UninitializedParameter(old.requires_grad, new.device, new.dtype)
                continue
            try:
                torch.utils.swap_tensors(old, new)
            except RuntimeError as error:
                warnings.warn(
                    f"{type(self).__name__}.{name} is another Parameter now that it is on {new.device.type}: an "
                    f"optimizer made before, or a layer tied to it, has the old one ({error})",
                    stacklevel=3,
                )
            else:
                self._parameters[name] = old
        return result

    torch.nn.Module._apply = apply


def handle_storages() -> None:
    """Let whole storages be copied, saved and loaded, which PyTorch does by their bytes' addresses."""

    def storages() -> Any:
        return importlib.import_module("wholestep.device.storages")

    def replace(owner: type, name: str, kernel: str) -> None:
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def method(self: Any) -> Any:
            device = self._untyped_storage.device if owner is torch.TypedStorage else self.device
            return getattr(storages(), kernel)(self) if device.type == "tpu" else plain(self)

        setattr(owner, name, method)

    make = torch.UntypedStorage.__new__

    @functools.wraps(make)
    def new(cls: type, *args: Any, device: Any = None, **options: Any) -> Any:
        if device is not None and torch.device(device).type == "tpu":
            return storages().new(*args)
        return make(cls, *args, **({} if device is None else {"device": device}), **options)

    torch.UntypedStorage.__new__ = new
    for name, kernel in (("clone", "clone"), ("cpu", "to_cpu"), ("__reduce__", "reduce"), ("data_ptr", "address")):
        replace(torch.UntypedStorage, name, kernel)
    replace(torch.TypedStorage, "__reduce__", "reduce_typed")
    replace(torch.Tensor, "_typed_storage", "typed_storage")

    def load(storage: Any, location: str) -> Any:
        return storages().from_cpu(storage) if location.partition(":")[0] == "tpu" else None

    torch.serialization.register_package(9, lambda storage: None, load)


class _Generators(type(torch._C.Generator)):  # type: ignore[misc]
    """The class of `torch.Generator`, of which every generator of PyTorch's is an instance."""

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, torch._C.Generator)

    def __call__(cls, device: Any = "cpu") -> torch._C.Generator:
        if torch.device(device).type == "tpu":
            return DeviceGenerator()
        return torch._C.Generator(device)


class DeviceGenerator(torch._C.Generator):
    """A generator for the device: one of the CPU's, from which keys are drawn (`random.drawing_from`)."""

    @property
    def device(self) -> torch.device:
        """The device that it is made for."""
        return torch.device("tpu", 0)


def make_generators() -> None:
    """Let `torch.Generator("tpu")` be one that random operators on the device take."""
    namespace = {"__doc__": torch._C.Generator.__doc__, "__module__": "torch"}  # where pickles look it up
    torch.Generator = _Generators("Generator", (torch._C.Generator,), namespace)


def serve_accelerator() -> None:
    """Let functions of `torch.accelerator` that need more than a Python backend can register ask `torch.tpu`."""

    def replace(name: str) -> None:
        plain = getattr(torch.accelerator, name)

        @functools.wraps(plain)
        def function(*args: Any, **options: Any) -> Any:
            current = torch.accelerator.current_accelerator()
            own = current is not None and current.type == "tpu"
            return (getattr(torch.tpu, name) if own else plain)(*args, **options)

        setattr(torch.accelerator, name, function)

    for name in ("synchronize", "empty_cache", "memory_stats", "memory_allocated", "max_memory_allocated"):
        replace(name)
