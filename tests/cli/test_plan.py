"""`wholestep plan` on programs that are really compiled for TPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cli.command import run_cli

from wholestep.recipes.registry import find

DEBUG = ("plan", "llama3_debug", "--topology", "v6e:2x2", "--set", "layers.execution=loop")


def test_a_small_recipe_is_planned(capsys, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    code, out, _ = run_cli(capsys, *DEBUG, "--json", "--html", str(page))
    assert code == 0
    report = json.loads(out)
    assert (report["mesh"], report["chips"], report["layers"]) == ("fsdp=4", 4, 4)
    assert report["memory"]["fits"] and report["memory"]["available"] == 31.25 * 2**30
    state = find("llama3_debug").function().model.num_parameters() * 4 // 4  # fp32, over four devices
    for kind, copies in (("parameters", 1), ("optimizer state", 2)):
        assert copies * state <= report["memory"]["by_kind"][kind] <= 1.01 * copies * state
    assert report["speed"]["low"] < report["speed"]["expected"] < report["speed"]["high"]
    assert sum(report["speed"]["terms"].values()) == pytest.approx(report["speed"]["expected"])
    assert {traffic["axes"][0] for traffic in report["traffic"]} == {"fsdp"}
    exposed = [finding["where"] for finding in report["findings"] if finding["kind"] == "exposed collective"]
    assert any("layers.*.feed_forward.up_proj (feed_forward.py:52)" in where for where in exposed)
    assert "<svg" in page.read_text()

    code, again, _ = run_cli(capsys, *DEBUG)
    assert code == 0 and "Fits?" in again and "predicted from the compiled program" in again


def test_two_recipes_side_by_side_of_fewer_layers(capsys) -> None:
    code, out, _ = run_cli(capsys, *DEBUG, "--layers", "1", "--against", "qwen3_debug")
    assert code == 0 and "qwen3_debug" in out and "1 of 4 layers" in out


def test_what_does_not_fit_comes_with_settings_that_were_compiled(capsys) -> None:
    tight = ("--layers", "1", "--flag", "xla_tpu_max_hbm_size_mib=6")
    code, out, _ = run_cli(capsys, *DEBUG, *tight, "--json")
    assert code == 0
    report = json.loads(out)
    assert not report["memory"]["fits"] and report["memory"]["needed"] > report["memory"]["available"]
    assert report["remedies"]
    assert all(remedy["fits"] == (remedy["needed"] <= report["memory"]["available"]) for remedy in report["remedies"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing", "--topology", "v6e:2x2"), "no recipe 'nothing'"),
        (("llama3_debug",), "llama3_debug is made for no topology"),
        (("llama3_debug", "--topology", "v6e"), "not a chip and a torus"),
        (("llama3_debug", "--topology", "v6e:3x3"), "v6e:3x3"),
        (("llama3_debug", "--topology", "v9:2x2"), "no chip 'v9'"),
        (("llama3_debug", "--topology", "v6e:2x2", "--layers", "9"), "has 4 layers"),
        (("llama3_debug", "--topology", "v6e:2x2", "--set", "mesh.fsdp=3"), "has 4"),
        (("llama3_debug", "--topology", "v6e:2x2", "--flag", "latency_hidin"), "latency_hiding"),
        (("llama3_debug", "--topology", "v6e:2x2", "--flag", "xla_no_such_flag=1"), "xla_no_such_flag"),
        (("llama3_debug", "--topology", "v6e:2x2", "--set", "layers.execution=split"), "layers.execution=loop"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, words: tuple[str, ...], message: str) -> None:
    code, _, error = run_cli(capsys, "plan", *words)
    assert code == 2 and message in error and error.count("\n") == 1


def test_without_libtpu_it_says_what_to_install(capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    code, _, error = run_cli(capsys, *DEBUG)
    assert code == 2 and "libtpu" in error and "pip install" in error
