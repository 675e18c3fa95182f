from __future__ import annotations

import os
from pathlib import Path

import pytest

from wholestep.data.cache import SAMPLE_BYTES, SMALL_FILE_BYTES, cached_directory, digest, fingerprint_files
from wholestep.errors import DataError


def test_filled_once_and_whole(cache: Path) -> None:
    def fill(folder: Path) -> None:
        assert folder.parent == cache / "kind" and folder.name != "key"
        (folder / "a").write_text("a")

    folder = cached_directory("kind", "key", fill)
    assert folder == cache / "kind" / "key"
    assert cached_directory("kind", "key", lambda _: pytest.fail("filled again")) == folder
    assert [path.name for path in folder.parent.iterdir()] == ["key"]


def test_the_first_of_two_that_fill_at_once_wins() -> None:
    def second(folder: Path) -> None:
        (folder / "who").write_text("second")

    def first(folder: Path) -> None:
        cached_directory("kind", "key", second)  # another process is done meanwhile
        (folder / "who").write_text("first")

    folder = cached_directory("kind", "key", first)
    assert (folder / "who").read_text() == "second"
    assert [path.name for path in folder.parent.iterdir()] == ["key"]


def test_what_a_killed_process_left_goes_and_what_another_fills_stays(cache: Path) -> None:
    left, filling, other = (cache / "kind" / name for name in ("key.left", "key.filling", "key2.left"))
    for folder in (left, filling, other):
        folder.mkdir(parents=True)
    for folder in (left, other):
        os.utime(folder, (0, 0))
    cached_directory("kind", "key", lambda _: None)
    assert sorted(path.name for path in (cache / "kind").iterdir()) == ["key", "key.filling", "key2.left"]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WHOLESTEP_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cache folder .*file.kind: cannot be written .* set WHOLESTEP_CACHE"):
        cached_directory("kind", "key", lambda _: None)


def test_digest_tells_where_parts_end() -> None:
    assert digest("ab", "c") != digest("a", "bc")


def test_large_files_are_sampled_at_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "large"
    content = bytearray(SMALL_FILE_BYTES + 10 * SAMPLE_BYTES)
    keys = set()
    for changed in (None, 0, len(content) // 3, len(content) - 1):
        if changed is not None:
            content[changed] = 1
        path.write_bytes(content)
        keys.add(fingerprint_files(tmp_path, [path]))
    assert len(keys) >= 3  # a change between the samples may go unseen
