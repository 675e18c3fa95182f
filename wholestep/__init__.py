"""Wholestep: train PyTorch models on TPU with the whole training step as one XLA program."""

from __future__ import annotations

import importlib
from typing import Any

from wholestep.device.register import register_with_torch

__version__ = "0.1.0"
__all__ = ["__version__", "capture_step", "flush", "from_jax", "jax_op", "to_jax"]

_WHERE = {
    "capture_step": "wholestep.device.captured",
    "flush": "wholestep.device.eager",
    "from_jax": "wholestep.device.exchange",
    "jax_op": "wholestep.xla.jax_op",
    "to_jax": "wholestep.device.exchange",
}


def __getattr__(name: str) -> Any:
    # On demand: PyTorch and JAX take seconds to import, which `wholestep --help` should not wait for.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


register_with_torch()
