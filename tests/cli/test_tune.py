"""`wholestep tune` with the real compiler, on a space of two candidates."""

from __future__ import annotations

import json
from pathlib import Path

from cli.command import run_cli

SMALL = ("mesh.fsdp=4", "model.layers=1", "batch_size=4", "microbatches=1", "model.lm_head.inner=whole", "flags=")


def test_a_recipe_is_tuned_and_gone_on_with(capsys, tmp_path: Path) -> None:
    settings = [word for each in SMALL for word in ("--set", each)]
    words = ["tune", "llama3_debug", "--topology", "v6e:2x2", *settings, "--budget", "10", "--out", str(tmp_path)]
    code, out, said = run_cli(capsys, *words, "--json")
    assert code == 0, said
    result = json.loads(out)
    assert result["size"] == 2
    assert result["stopped"] == ""
    trials = [json.loads(line) for line in (tmp_path / "tried.jsonl").read_text().splitlines()]
    assert [trial["overrides"] for trial in trials] == [[], ["model.layers.*.attention.inner=splash"]]
    assert all(trial["fits"] and 0 < trial["low"] < trial["expected"] < trial["high"] for trial in trials)
    best = max(trials, key=lambda trial: trial["tokens_per_second_per_chip"])
    assert result["best"] == best
    assert (tmp_path / "winner.txt").read_text().splitlines() == [*SMALL, *best["overrides"]] == result["settings"]
    assert (tmp_path / "trade.png").read_bytes().startswith(b"\x89PNG")
    code, out, said = run_cli(capsys, *words)
    assert code == 0
    assert said.count("[before]") == 2
    assert len((tmp_path / "tried.jsonl").read_text().splitlines()) == 2
    assert f"wholestep train llama3_debug --set {SMALL[0]}" in out


def test_what_is_wrong_is_one_line(capsys, tmp_path: Path) -> None:
    for words, error in (
        (("llama3_debug", "--topology", "v6e:2x2", "--budget", "0"), "--budget 0: minutes, more than 0"),
        (("llama_debug", "--topology", "v6e:2x2"), "no recipe 'llama_debug'"),
        (("llama3_debug", "--topology", "v6e:3x2x2"), "topology 'v6e:3x2x2'"),
        (("llama3_debug", "--topology", "v6e:2x2", "--set", "mesh.fsdp=3"), "mesh fsdp=3 needs 3 devices"),
    ):
        code, _, said = run_cli(capsys, "tune", *words, "--out", str(tmp_path))
        assert code == 2
        assert error in said
        assert len(said.strip().splitlines()) == 1
