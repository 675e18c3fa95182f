"""Moves between device memory and the host's, as nodes of a step graph."""

from __future__ import annotations

from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from wholestep.graph.trace import record


def to_host(x: Tensor) -> Tensor:
    """The same values in host memory. In PyTorch, where a step graph runs on one device, `x` itself."""
    return x if get_proxy_mode() is None else record(to_host, [x], x)


def to_device(x: Tensor) -> Tensor:
    """The same values in device memory. In PyTorch `x` itself."""
    return x if get_proxy_mode() is None else record(to_device, [x], x)
