"""What is kept of a compiled program is read again only if it is whole."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from wholestep.plan.compiled import Compiled


def kept(folder: Path) -> Path:
    for name in ("hlo", "buffers", "ranges"):
        (folder / f"{name}.gz").write_bytes(gzip.compress(b"a text that is long enough to be cut" * 9))
    (folder / "facts.json").write_text(json.dumps({"flops": 1}))
    return folder


def test_what_is_whole_is(tmp_path: Path) -> None:
    assert Compiled(kept(tmp_path)).is_whole()


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "hlo.gz").write_bytes(b"junk"),
        lambda folder: (folder / "hlo.gz").write_bytes(b""),
        lambda folder: (folder / "ranges.gz").write_bytes((folder / "ranges.gz").read_bytes()[:-9]),
        lambda folder: (folder / "buffers.gz").unlink(),
        lambda folder: (folder / "facts.json").write_text("{}"),
        lambda folder: (folder / "facts.json").write_text('{"flops": 1'),
        lambda folder: (folder / "facts.json").unlink(),
    ],
    ids=["junk", "empty", "cut", "gone", "no facts", "facts cut", "facts gone"],
)
def test_what_is_damaged_is_not(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(kept(tmp_path))
    assert not Compiled(tmp_path).is_whole()
