"""How the examples run their training steps; all else in them is plain PyTorch.

immediate   every operator runs when Python comes to it
deferred    operators are recorded, and run as one program when a value is needed
compiled    the model's forward and backward pass are one program each, by torch.compile
captured    a whole step, optimizer included, is one program
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import wholestep

MODES = ("immediate", "deferred", "compiled", "captured")


def prepared(model: nn.Module, mode: str) -> Callable[..., Any]:
    """`model` as a training step calls it."""
    return torch.compile(model, backend="wholestep") if mode == "compiled" else model


def prepared_step(step: Callable[..., Any], mode: str, device: torch.device) -> Callable[..., Any]:
    """`step` as a training loop calls it."""
    if mode == "captured":
        return wholestep.capture_step(step)
    if device.type == "tpu":
        torch.tpu.eager_mode = "deferred" if mode == "deferred" else "immediate"
    return step


def command_line(main: Callable[..., tuple[list[float], dict[str, torch.Tensor]]], description: str) -> None:
    """Run an example's `main` as the arguments say, and print its losses."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", choices=MODES, default="immediate")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--exact", action="store_true", help="no dropout, other random numbers drawn on the host")
    losses, _ = main(**vars(parser.parse_args()))
    for number, loss in enumerate(losses, 1):
        print(f"{number:5} {loss:.4f}")
