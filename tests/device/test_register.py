"""How the device gets into PyTorch, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run(code: str, **environment: str) -> str:
    """What the code prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("imports", ["import wholestep, torch", "import torch, wholestep"])
def test_imported_before_or_after_torch(imports: str) -> None:
    out = run(f"{imports}\nx = torch.ones(2, device='tpu') + 1\nprint(x.tolist(), x.device, torch.tpu.eager_mode)")
    assert out == "[2.0, 2.0] tpu:0 immediate\n"


def test_torch_is_not_imported_with_the_package() -> None:
    out = run("import sys, wholestep; print('torch' in sys.modules, 'jax' in sys.modules)")
    assert out == "False False\n"


def test_jax_is_imported_with_the_first_tensor() -> None:
    out = run(
        "import sys, torch, wholestep; torch.device('tpu'); print('jax' in sys.modules)\n"
        "torch.ones(1, device='tpu'); print('jax' in sys.modules)"
    )
    assert out == "False\nTrue\n"


def test_another_package_s_device_is_left_in_place() -> None:
    out = run(
        "import torch, types\n"
        "torch.utils.rename_privateuse1_backend('tpu')\n"
        "other = types.ModuleType('other')\n"
        "torch._register_device_module('tpu', other)\n"
        "import wholestep\n"
        "print(torch.tpu is other)"
    )
    assert "True" in out and "UserWarning: a device 'tpu' is registered with PyTorch already" in out


def test_the_environment_sets_the_mode() -> None:
    code = "import torch, wholestep; torch.ones(1, device='tpu'); print(torch.tpu.eager_mode)"
    assert run(code, WHOLESTEP_EAGER_MODE="deferred") == "deferred\n"
    with pytest.raises(AssertionError, match="eager mode 'lazy' is none of immediate, deferred"):
        run(code, WHOLESTEP_EAGER_MODE="lazy")
