"""Tell PyTorch about the `tpu` device. JAX is imported when the first tensor is made there."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Operators whose kernel is a function of `kernels.py`.
_KERNELS = {
    "empty.memory_format": "empty_memory_format",
    "empty_strided": "empty_strided",
    "as_strided": "as_strided",
    "as_strided_": "as_strided_",
    "view": "view",
    "_reshape_alias": "reshape_alias",
    "unfold": "unfold",
    "view_as_real": "view_as_real",
    "view_as_complex": "view_as_complex",
    "is_set_to": "is_set_to",
    "_index_put_impl_": "index_put_impl_",
    "set_": "set_nothing",
    "set_.source_Storage": "set_whole_storage",
    "set_.source_Storage_storage_offset": "set_storage",
    "set_.source_Tensor": "set_tensor",
    "resize_": "resize_",
    "_copy_from": "copy_from",
    "_copy_from_and_resize": "copy_from_and_resize",
    "_local_scalar_dense": "local_scalar",
    "clone": "clone",
    "_to_copy": "to_copy",
    "native_batch_norm": "native_batch_norm",
    "kaiser_window": "kaiser_window",
    "kaiser_window.periodic": "kaiser_window",
    "kaiser_window.beta": "kaiser_window",
}

# Operators that PyTorch would compose of several, though they are one in XLA, or that it cannot compose for a device
# without kernels of its own.
_WHOLE = (
    *("arange.start_step", "binary_cross_entropy_with_logits", "block_diag", "celu", "constant_pad_nd", "convolution"),
    *("convolution_backward", "cummax", "cummin", "diagonal_backward", "dist", "embedding", "eye", "index_put"),
    *("kthvalue", "linalg_lstsq", "logcumsumexp", "logsumexp", "masked_fill.Tensor", "masked_scatter", "median.dim"),
    *("mv", "nan_to_num", "native_group_norm", "native_layer_norm", "randperm", "rot90", "slice_backward"),
    *("soft_margin_loss", "sort", "stack"),
)

_REGISTRATIONS: list[Any] = []
"""They last as long as these."""


def register_with_torch() -> None:
    """Register the device now if PyTorch is imported, and else as soon as it is: importing it takes seconds, which
    `wholestep --help` need not wait for."""
    if "torch" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _AfterTorch())


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Registers the device when PyTorch has been imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """PyTorch's own, which registers the device at its end; None for other modules."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            load(module)
            register()

        spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Make `torch.device("tpu")` this device, unless another package has made one."""
    import torch
    from torch import library
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from wholestep.device import attention, foreach, patches
    from wholestep.device.autocast import register_autocast
    from wholestep.device.module import TpuModule

    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        warnings.warn(
            f"a device {taken!r} is registered with PyTorch already: wholestep leaves it in place", stacklevel=2
        )
        return
    _setup_privateuseone_for_python_backend("tpu", TpuModule("tpu"))
    fallback = library.Library("_", "IMPL")
    fallback.fallback(_fallback, "PrivateUse1")
    fallback.fallback(library.fallthrough_kernel, "AutocastPrivateUse1")
    operators = library.Library("aten", "IMPL")
    for name, function in _KERNELS.items():
        operators.impl(name, _Kernel(function), "PrivateUse1")
    # PyTorch would have these write into an output that it makes first.
    structured = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeExplicitAutogradNonFunctional")
    for name in dict.fromkeys([*(name.removeprefix("aten::") for name in structured), *_WHOLE, *foreach.names()]):
        if name not in _KERNELS:
            operators.impl(name, _Computed(name, operators), "PrivateUse1")
    for key in ("AutogradPrivateUse1", "PrivateUse1"):  # the second without gradients, in inference mode
        operators.impl("scaled_dot_product_attention", attention.scaled_dot_product_attention, key)
    for name in ("_native_multi_head_attention", "_transformer_encoder_layer_fwd"):  # shapes, for `torch.compile`
        operators.impl(name, _Composed(name), "Meta")
    # Asked before rows of different lengths become a nested tensor, of which there are none here.
    operators.impl("_nested_tensor_from_mask_left_aligned", lambda x, mask: False, "PrivateUse1")
    register_autocast(operators)
    # Arrays are copied to the device from any memory of the host.
    operators.impl("_pin_memory", lambda tensor, device=None: tensor.clone(), "CPU")
    for key in ("Conjugate", "Negative"):  # which would copy the target first: the schema does not say it is written
        operators.impl("_copy_from", library.fallthrough_kernel, key)
    collectives = library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that these take the place of other kernels
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"):
            if name.startswith("c10d::"):
                collectives.impl(name, _refuse_collective, "PrivateUse1", allow_override=True)
    _REGISTRATIONS.extend((fallback, operators, collectives))
    patches.apply()


class _Kernel:
    """A function of `kernels.py`, imported when it is first called."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._function: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            self._function = getattr(importlib.import_module("wholestep.device.kernels"), self._name)
        return self._function(*args, **kwargs)


class _Composed:
    """An operator without a kernel for shapes, by the rule that graphs are made with."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        rules = importlib.import_module("wholestep.graph.decompositions").decompositions()
        return rules[getattr(torch.ops.aten, self._name).default](*args, **kwargs)


class _Computed:
    """Stands for `dispatch.operation` of the operator of this name, and gives it its place when it is first called."""

    def __init__(self, name: str, operators: Any) -> None:
        self._name = name
        self._operators = operators

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        packet, _, overload = self._name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        operation = importlib.import_module("wholestep.device.dispatch").operation(operator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it takes the place of this
            self._operators.impl(self._name, operation, "PrivateUse1", allow_override=True)
        return operation(*args, **kwargs)


def _fallback(operator: Any, *args: Any, **kwargs: Any) -> Any:
    from wholestep.device.dispatch import operation

    return operation(operator)(*args, **kwargs)


def _refuse_collective(*args: Any, **kwargs: Any) -> Any:
    from wholestep.errors import WholestepError

    raise WholestepError(
        "torch.distributed has no collectives between tpu tensors in eager mode: one program controls all devices; "
        "capture the step, in which collectives over a DeviceMesh are part of the program (docs/device.md)"
    )
