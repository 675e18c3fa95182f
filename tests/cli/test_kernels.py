"""`wholestep kernels` lists what there is, and every setting it shows can be given to some recipe."""

from __future__ import annotations

import json

from cli.command import run_cli

from wholestep.config.override import apply
from wholestep.kernels import KERNELS, turned_on
from wholestep.recipes.registry import find


def test_every_kernel_is_listed_with_a_setting_that_works(capsys) -> None:
    code, out, _ = run_cli(capsys, "kernels", "--json")
    assert code == 0
    listed = {row["name"]: row for row in json.loads(out)}
    assert set(listed) == {kernel.name for kernel in KERNELS}
    _, text, _ = run_cli(capsys, "kernels")
    for row in listed.values():
        assert f"--set {row['setting']}\n" in text
        assert row["setting"] in turned_on(apply(find("qwen3_moe_debug").function(), [row["setting"]]))
