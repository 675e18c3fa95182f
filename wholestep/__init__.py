"""Wholestep: train PyTorch models on TPU with the whole training step as one XLA program."""

from __future__ import annotations

from typing import Any

from wholestep.device.register import register_with_torch

__version__ = "0.1.0"
__all__ = ["__version__", "capture_step", "jax_op"]


def __getattr__(name: str) -> Any:
    # On demand: PyTorch and JAX take seconds to import, which `wholestep --help` should not wait for.
    if name == "jax_op":
        from wholestep.xla.jax_op import jax_op

        return jax_op
    if name == "capture_step":
        from wholestep.device.captured import capture_step

        return capture_step
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register_with_torch()
