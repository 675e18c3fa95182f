"""`wholestep chips` prints the table, whole, for people and for programs."""

from __future__ import annotations

import json

from cli.command import run_cli

from wholestep.xla.chips import ANNOUNCED, CHIPS


def test_every_chip_is_listed_with_its_source(capsys) -> None:
    code, text, _ = run_cli(capsys, "chips")
    assert code == 0
    words = " ".join(text.split())  # sources are wrapped
    for chip in (*CHIPS, *ANNOUNCED):
        assert f"{chip.name}: {chip.source}" in words
    assert "v6e:2x4" in text and "tpu8t*" in text and "v6e*" not in text
    assert "one link, one" in text and "(GB/s)" in text


def test_json_has_every_figure_and_says_what_is_announced(capsys) -> None:
    code, out, _ = run_cli(capsys, "chips", "--json")
    assert code == 0
    listed = {row["name"]: row for row in json.loads(out)}
    assert {name for name, row in listed.items() if row["announced"]} == {chip.name for chip in ANNOUNCED}
    assert listed["v6e"]["ici_bytes_per_second"] == 100e9
    assert listed["tpu7x"]["clock_hz"] == [1.9e9, 2.2e9]
    assert listed["tpu8t"]["peak_flops"] is None
