"""The example of docs/custom-kernels.md: the kernel is right, the model trains with it, and the page shows its code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch
from tiny_run import OVERRIDES, corpus, own_cache  # noqa: F401  fixtures

from wholestep.models.layers.norm import RMSNorm

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "custom_kernel.py"


def test_the_kernel_is_the_plain_norm() -> None:
    namespace: dict[str, object] = {"__name__": "custom_kernel"}
    exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), namespace)
    assert "pallas" in RMSNorm.Config.choices()
    x, weight = torch.randn(3, 7, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    plain = RMSNorm.Config().build(dim=16)
    plain.weight.data = weight.detach().clone()
    got, wanted = namespace["rms_norm"](x, weight, 1e-5), plain(x)  # type: ignore[operator]
    torch.testing.assert_close(got, wanted)
    tangent = torch.randn_like(got)
    for one, other in zip(
        torch.autograd.grad(got, [x, weight], tangent),
        torch.autograd.grad(wanted, [x, plain.weight], tangent),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_the_example_trains(tmp_path: Path, corpus: Path) -> None:  # noqa: F811
    settings = {**OVERRIDES, "data.source": str(corpus), "mesh.fsdp": 2, "model.layers": 1}
    settings = {name: value for name, value in settings.items() if name != "steps"}
    command = [sys.executable, str(EXAMPLE), *(f"{name}={value}" for name, value in settings.items())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "20" in done.stderr


def test_the_page_shows_the_examples_code() -> None:
    page, code = (ROOT / "docs" / "custom-kernels.md").read_text(), EXAMPLE.read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        for line in block.splitlines():
            line = line.split("  #")[0].strip().rstrip(",")
            if (
                line
                and "..." not in line
                and not line.startswith(("turned_on", "launch", "out =", "return out", "return jax.vjp"))
            ):
                assert line.rstrip(",") in code, line
