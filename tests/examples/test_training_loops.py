"""The training loops of `examples/` in every mode against the same loops in plain eager PyTorch on the CPU."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import TOLERANCE, relative_error
from torch import Tensor

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES: dict[str, dict[str, int]] = {
    "image_classifier": {"width": 8, "batch": 8},
    "small_gpt": {"width": 32, "layers": 2, "batch": 4},
    "unet": {"width": 8, "batch": 4},
    "lstm": {"width": 12, "batch": 4, "length": 5},
    "gan": {"width": 8, "batch": 4},
}
STEPS = 4

pytestmark = [  # PyTorch's own, in dynamo
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def run(name: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[list[float], dict[str, Tensor]]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    try:
        return importlib.import_module(name).main(steps=STEPS, **SIZES[name], **options)
    finally:
        torch._dynamo.reset()
        torch.tpu.eager_mode = "immediate"
        for imported in (name, "modes"):
            sys.modules.pop(imported, None)


@functools.cache
def on_cpu(name: str) -> tuple[list[float], dict[str, Tensor]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return run(name, monkeypatch, exact=True)


def ways() -> Iterator[Any]:
    """Every example in every mode; most only in `make test-training-loops`, since they compile for minutes."""
    for name in SIZES:
        yield pytest.param(name, "cpu", "compiled")
        for mode in ("immediate", "deferred", "compiled", "captured"):
            usual = name == "small_gpt" and mode != "compiled"
            yield pytest.param(name, "tpu", mode, marks=[] if usual else pytest.mark.long)


@pytest.mark.parametrize(("name", "device", "mode"), list(ways()))
def test_equal_to_plain_pytorch(name: str, device: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, state = on_cpu(name)
    torch.tpu.counters().reset()
    got_losses, got_state = run(name, monkeypatch, exact=True, device=device, mode=mode)
    if mode == "captured":  # of four calls the first runs as always, and the others are one program each
        assert torch.tpu.counters().recordings >= STEPS - 1
    assert got_losses == pytest.approx(losses, rel=TOLERANCE[torch.float32])
    assert got_state.keys() == state.keys()
    for key, value in state.items():
        error = relative_error(got_state[key].numpy(), value.numpy())
        assert error <= TOLERANCE[torch.float32], f"{key}: {error}"


@pytest.mark.parametrize("name", SIZES)
def test_compiled_with_random_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout is drawn otherwise than eagerly, but the same in every run."""
    losses, state = run(name, monkeypatch, mode="compiled")
    again, same_state = run(name, monkeypatch, mode="compiled")
    assert losses == again
    assert all(torch.equal(same_state[key], value) for key, value in state.items())
