"""`wholestep flags` lists what `--set flags=...` takes."""

from __future__ import annotations

import json

from cli.command import run_cli

from wholestep.xla.flag_sets import SETS
from wholestep.xla.known_flags import FLAGS


def test_every_set_and_flag_is_listed(capsys) -> None:
    code, out, _ = run_cli(capsys, "flags", "--json")
    assert code == 0
    listed = json.loads(out)
    assert [entry["name"] for entry in listed["sets"]] == list(SETS)
    assert [entry["name"] for entry in listed["flags"]] == list(FLAGS)
    _, text, _ = run_cli(capsys, "flags")
    lines = text.splitlines()
    assert "vmem_96m, v5e v6e: larger tiles for dense models; less is prefetched" in lines
    assert "    xla_tpu_scoped_vmem_limit_kib=98304" in lines
    assert "    needs xla_tpu_enable_sparse_core_collective_aggregator=true" in lines
    for flag in FLAGS.values():
        assert any(line.startswith(f"{flag.name} (") and line.endswith(flag.purpose) for line in lines)


def test_what_a_set_changes_in_a_recipe_is_measured(capsys) -> None:
    small = ("--set", "model.layers=1", "--sets", "sparsecore_offload")
    code, out, said = run_cli(capsys, "flags", "llama3_debug", "--topology", "v6e:2x2", *small, "--json")
    assert code == 0, said
    none, offload = json.loads(out)
    assert [none["name"], offload["name"]] == ["none", "sparsecore_offload"]
    assert none["collectives"] > none["asynchronous"] >= 0
    assert offload["asynchronous"] > none["asynchronous"]
    assert 0 < none["live"] <= none["needed"]


def test_what_is_wrong_is_one_line(capsys) -> None:
    for words, error in (
        (("llama3_debug",), "llama3_debug is made for no topology"),
        (
            ("llama3_debug", "--topology", "v5e:2x2", "--sets", "sparsecore_offload"),
            "sparsecore_offload is not for v5e",
        ),
    ):
        code, _, said = run_cli(capsys, "flags", *words)
        assert code == 2
        assert error in said
        assert len(said.strip().splitlines()) == 1
