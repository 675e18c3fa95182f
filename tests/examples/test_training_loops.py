"""The training loops of `examples/` in every mode against the same loops in plain eager PyTorch on the CPU."""

from __future__ import annotations

import importlib
import sys
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
    "lstm": {"width": 12, "batch": 4},
    "gan": {"width": 8, "batch": 4},
}
STEPS = 4

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # PyTorch's own


def run(name: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[list[float], dict[str, Tensor]]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    try:
        return importlib.import_module(name).main(steps=STEPS, **SIZES[name], **options)
    finally:
        torch._dynamo.reset()
        for imported in (name, "modes"):
            sys.modules.pop(imported, None)


@pytest.mark.parametrize("name", SIZES)
def test_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, state = run(name, monkeypatch, exact=True)
    got_losses, got_state = run(name, monkeypatch, exact=True, mode="compiled")
    assert got_losses == pytest.approx(losses, rel=TOLERANCE[torch.float32])
    assert got_state.keys() == state.keys()
    for key, value in state.items():
        error = relative_error(got_state[key].numpy(), value.numpy())
        assert error <= TOLERANCE[torch.float32], f"{key}: {error}"


@pytest.mark.parametrize("name", SIZES)
def test_with_random_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, _ = run(name, monkeypatch, mode="compiled")
    again, _ = run(name, monkeypatch, mode="compiled")
    exact, _ = run(name, monkeypatch, mode="compiled", exact=True)
    assert losses == again != exact
    assert all(loss < 10 for loss in losses)
