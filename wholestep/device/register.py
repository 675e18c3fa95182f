"""Tell PyTorch about the `tpu` device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from wholestep.device.dispatch import call
from wholestep.device.kernels import KERNELS
from wholestep.device.module import TpuModule
from wholestep.graph.decompositions import decompositions
from wholestep.xla.lowering import LOWERINGS

_LIBRARIES: list[torch.library.Library] = []
"""Registrations last as long as these."""


def register() -> None:
    """Make `torch.device("tpu")` this device."""
    _setup_privateuseone_for_python_backend("tpu", TpuModule("tpu"))
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(call, "PrivateUse1")
    operators = torch.library.Library("aten", "IMPL")
    for operator, function in KERNELS.items():
        operators.impl(operator, function, "PrivateUse1")
    for name in _computed():
        operators.impl(name, _Kernel(name), "PrivateUse1")
    _LIBRARIES.extend((fallback, operators))
    _print_from_cpu()


class _Kernel:
    """`call` of the operator of this name, which is looked up when it is first called: there are two thousand."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.operator: torch._ops.OpOverload | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.operator is None:
            packet, _, overload = self.name.removeprefix("aten::").partition(".")
            self.operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        return call(self.operator, *args, **kwargs)


def _computed() -> list[str]:
    """Operators that PyTorch would otherwise write into an output it makes, or compose of others, though they have a
    lowering or a decomposition that makes one program of them."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeExplicitAutogradNonFunctional")
    known = [op for op in {*LOWERINGS, *decompositions()} if isinstance(op, torch._ops.OpOverload)]
    composed = [
        op._name
        for op in known
        if op.namespace == "aten"
        and torch._C._dispatch_has_kernel_for_dispatch_key(op._name, "CompositeExplicitAutograd")
        and not _returns_view(op)
    ]
    taken = {op._name.removesuffix(".default") for op in KERNELS}
    return [name for name in dict.fromkeys([*names, *composed]) if name.startswith("aten::") and name not in taken]


def _print_from_cpu() -> None:
    """Let a tensor be printed by one copy, not by a dozen small programs."""
    plain = torch._tensor_str._tensor_str

    def printed(tensor: torch.Tensor, indent: int) -> str:
        return plain(tensor.detach().cpu() if tensor.device.type == "tpu" else tensor, indent)

    torch._tensor_str._tensor_str = printed


def _returns_view(operator: torch._ops.OpOverload) -> bool:
    return any(each.alias_info is not None and not each.alias_info.is_write for each in operator._schema.returns)
