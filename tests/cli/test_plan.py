"""`wholestep plan` on programs that are really compiled for TPU."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest
from cli.command import run_cli
from plan import reports

from wholestep.config.override import apply
from wholestep.plan import remedies
from wholestep.recipes.registry import find

cli_plan = importlib.import_module("wholestep.cli.plan")  # the package's attribute of that name is the command
SMALL = ("--topology", "v6e:2x2", "--set", "layers.execution=loop", "--layers", "2")
DEBUG = ("plan", "llama3_debug", *SMALL)


def test_a_small_recipe_is_planned(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHOLESTEP_CACHE", str(tmp_path / "cache"))
    page = tmp_path / "plan.html"
    code, out, _ = run_cli(capsys, *DEBUG, "--json", "--html", str(page))
    assert code == 0
    report = json.loads(out)
    assert (report["mesh"], report["chips"], report["layers"], report["whole_layers"]) == ("fsdp=4", 4, 2, 4)
    assert report["memory"]["fits"] and report["memory"]["available"] == 31.25 * 2**30
    model = apply(find("llama3_debug").function(), ["model.layers=2"]).model
    state = model.num_parameters() * 4 // 4  # fp32, over four devices
    for kind, copies in (("parameters", 1), ("optimizer state", 2)):
        assert copies * state <= report["memory"]["by_kind"][kind] <= 1.01 * copies * state
    assert report["speed"]["low"] < report["speed"]["expected"] < report["speed"]["high"]
    assert sum(report["speed"]["terms"].values()) == pytest.approx(report["speed"]["expected"])
    assert {traffic["axes"][0] for traffic in report["traffic"]} == {"fsdp"}
    exposed = [finding["where"] for finding in report["findings"] if finding["kind"] == "exposed collective"]
    assert any("layers.*.feed_forward.up_proj (feed_forward.py:52)" in where for where in exposed)
    assert "<svg" in page.read_text()
    (entry,) = (tmp_path / "cache" / "plans").iterdir()
    (entry / "hlo.gz").write_bytes(b"junk")
    code, again, _ = run_cli(capsys, *DEBUG, "--json")
    assert code == 0 and json.loads(again)["memory"] == report["memory"], "what is damaged is compiled again"


def test_a_report_as_text_and_two_side_by_side(capsys, monkeypatch) -> None:
    made_up = {name: dataclasses.replace(reports.report(), recipe=name) for name in ("llama3_debug", "qwen3_debug")}
    monkeypatch.setattr(cli_plan, "plan_with_progress", lambda job, *_, **__: made_up[job.recipe])
    code, out, _ = run_cli(capsys, *DEBUG)
    assert code == 0 and "Fits?" in out and "predicted from the compiled program" in out
    code, both, _ = run_cli(capsys, *DEBUG, "--against", "qwen3_debug")
    assert code == 0 and "llama3_debug" in both and "qwen3_debug" in both and "MFU" in both


def test_what_does_not_fit_comes_with_settings_that_were_compiled(capsys, monkeypatch) -> None:
    monkeypatch.setattr(remedies, "TRIED", 1)
    tight = ("--flag", "xla_tpu_max_hbm_size_mib=8")
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


def test_a_page_that_cannot_be_written_is_said_before_anything_is_compiled(capsys, tmp_path: Path) -> None:
    page = tmp_path / "nowhere" / "plan.html"
    code, out, error = run_cli(capsys, *DEBUG, "--html", str(page))
    assert code == 2 and not out and f"--html {page}" in error and error.count("\n") == 1


def test_without_libtpu_it_says_what_to_install(capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    code, _, error = run_cli(capsys, *DEBUG)
    assert code == 2 and "libtpu" in error and "pip install" in error
