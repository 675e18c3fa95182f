from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from wholestep.data import open_source
from wholestep.data.documents import Documents, HeldOutDocuments, TrainDocuments
from wholestep.data.sources import Source
from wholestep.errors import DataError

TEXTS = ["first", "", "third line\nwith a newline", "vierter: äöü 🙂", "x" * 5000]


def texts_of(source: Source) -> list[str]:
    assert isinstance(source, Documents)
    return [source[index] for index in range(len(source))]


def lines_of(texts: list[str]) -> bytes:
    return "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts).encode()


def write_jsonl(path: Path, texts: list[str]) -> None:
    path.write_bytes(lines_of(texts))


def write_gzip(path: Path, texts: list[str]) -> None:
    half = len(texts) // 2  # two members, as some writers append
    path.write_bytes(gzip.compress(lines_of(texts[:half])) + gzip.compress(lines_of(texts[half:])))


def write_zstd(path: Path, texts: list[str]) -> None:
    half = len(texts) // 2
    compress = zstandard.ZstdCompressor().compress
    path.write_bytes(compress(lines_of(texts[:half])) + compress(lines_of(texts[half:])))


def write_parquet(path: Path, texts: list[str]) -> None:
    table = pa.table({"url": ["u"] * len(texts), "text": pa.array(texts, pa.string())})
    pq.write_table(table, path, row_group_size=2)


WRITERS = {
    "a.jsonl": write_jsonl,
    "a.jsonl.gz": write_gzip,
    "a.jsonl.zst": write_zstd,
    "a.parquet": write_parquet,
}


def test_stdlib_is_sorted_complete_and_without_tests() -> None:
    source = open_source("stdlib")
    assert isinstance(source, Documents)
    assert len(source) > 500
    texts = texts_of(source)  # every file decodes
    assert any("class OrderedDict" in text for text in texts)
    assert not any(text.startswith("# Python test set") for text in texts)
    assert source.fingerprint == open_source("stdlib").fingerprint


@pytest.mark.parametrize("name", WRITERS)
def test_record_files(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, TEXTS)
    for _ in range(2):  # written to the cache, then read from it
        source = open_source(str(tmp_path / name))
        assert texts_of(source) == TEXTS
        assert source[4] == TEXTS[4] and source[0] == TEXTS[0]  # type: ignore[index]


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_of_record_files_is_joined_in_order(tmp_path: Path, name: str) -> None:
    (tmp_path / "data").mkdir()
    suffix = name.removeprefix("a")
    WRITERS[name](tmp_path / "data" / f"b{suffix}", ["b0", "b1"])
    WRITERS[name](tmp_path / "data" / f"a{suffix}", ["a0"])
    WRITERS[name](tmp_path / "data" / f"c{suffix}", ["c0", "c1", "c2"])
    assert texts_of(open_source(str(tmp_path / "data"))) == ["a0", "b0", "b1", "c0", "c1", "c2"]
    assert texts_of(open_source(str(tmp_path / "data" / f"[bc]{suffix}"))) == ["b0", "b1", "c0", "c1", "c2"]


def test_plain_lines_pass_over_empty_lines_and_need_no_last_newline(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\n{"text": "a"}\r\n\r\n\n{"text": "b"}')
    assert texts_of(open_source(str(tmp_path / "a.jsonl"))) == ["a", "b"]


def test_an_edited_file_is_indexed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, ["one", "two"])
    first = open_source(str(path))
    write_jsonl(path, ["longer than before", "x", "y"])
    second = open_source(str(path))
    assert texts_of(second) == ["longer than before", "x", "y"]
    assert first.fingerprint != second.fingerprint


def test_a_folder_of_text(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    for name in ("b.md", "a.txt", "sub/c.py", ".git/config.txt", "__pycache__/d.py", "image.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    assert texts_of(open_source(str(folder))) == ["a.txt", "b.md", "sub/c.py"]
    assert texts_of(open_source(str(folder / "**" / "*.py"))) == ["__pycache__/d.py", "sub/c.py"]
    assert texts_of(open_source(str(folder / "image.png"))) == ["image.png"]  # named by itself


def test_a_glob_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    monkeypatch.chdir(tmp_path)
    assert texts_of(open_source("*.txt")) == ["a", "b"]


def test_the_fingerprint_is_of_contents_and_not_of_the_place(write_corpus: Callable[..., Path], tmp_path: Path) -> None:
    one, two = write_corpus(5, "one"), write_corpus(5, "two")
    assert open_source(str(one)).fingerprint == open_source(str(two)).fingerprint
    assert open_source(f"{one}/*.txt").fingerprint == open_source(f"{two}/*.txt").fingerprint
    (two / "001.txt").write_text("other")
    assert open_source(str(one)).fingerprint != open_source(str(two)).fingerprint


def test_splits_are_disjoint_and_complete() -> None:
    class Numbers(Documents):
        fingerprint = "numbers"

        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

        def __getitem__(self, index: int) -> str:
            assert 0 <= index < self.count
            return str(index)

    for count in range(2, 30):
        for every in range(2, 8):
            train = texts_of(TrainDocuments(Numbers(count), every))
            held_out = texts_of(HeldOutDocuments(Numbers(count), every))
            assert held_out == [str(index) for index in range(every - 1, count, every)]
            assert sorted(train + held_out, key=int) == [str(index) for index in range(count)]


BAD_LINES = [
    (b'{"text": "a"\n', r"a\.jsonl:2: not a JSON object .*mend or remove"),
    (b'["text"]\n', r"a\.jsonl:2: a JSON object is wanted, this is a list"),
    (b'{"body": "a"}\n', r"a\.jsonl:2: no field 'text', only \['body'\]; rename"),
    (b'{"text": null}\n', r"a\.jsonl:2: the field 'text' is a NoneType, not a string"),
    (b'{"text": "\\ud800"}\n', r"a\.jsonl:2: the text has half a surrogate pair"),
    (b"\xff\xfe\n", r"a\.jsonl:2: not a JSON object"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    data = b"\n" + line + lines_of(["good"])
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(DataError, match=message) as raised:
        open_source(str(tmp_path / "a.jsonl"))  # the first document, so at once
    assert "\n" not in str(raised.value)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    with pytest.raises(DataError, match=message.replace("jsonl", r"jsonl\.gz")):
        open_source(str(tmp_path / "a.jsonl.gz"))


def test_a_bad_line_further_on_is_named_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines_of(["good", "good"]) + b"\n{broken\n")
    source = open_source(str(tmp_path / "a.jsonl"))
    assert isinstance(source, Documents)
    with pytest.raises(DataError, match=r"a\.jsonl:4: "):
        source[2]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_a_truncated_file_is_an_error_and_leaves_nothing_in_the_cache(tmp_path: Path, cache: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path, TEXTS)
    path.write_bytes(path.read_bytes()[:-15])
    with pytest.raises(DataError, match=rf"{name}: .*(decompressed|Parquet).*again") as raised:
        open_source(str(path))
    assert "\n" not in str(raised.value)
    assert list((cache / "texts").iterdir()) == []


def test_parquet_without_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: no column 'text', only \['body'\]"):
        open_source(str(tmp_path / "a.parquet"))
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: row 2: 'text' is None"):
        open_source(str(tmp_path / "b.parquet"))


def test_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no text in it"):
        open_source(str(tmp_path / "empty"))
    with pytest.raises(DataError, match="no text in it"):
        open_source(str(tmp_path / "*.md"))
    for content in (b"", b"\n\n"):
        (tmp_path / "a.jsonl").write_bytes(content)
        with pytest.raises(DataError, match=r"holds no record"):
            open_source(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("spec", ["/no/such/folder", "./gone", "data/gone.jsonl", "gone.txt", "a/b/c", "", "a b"])
def test_a_missing_path_is_not_asked_of_the_hub(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *args, **kwargs: pytest.fail("asked the hub"))
    with pytest.raises(DataError, match="no such file or folder"):
        open_source(spec)


def test_mixed_kinds_are_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("about")
    write_jsonl(tmp_path / "a.jsonl", TEXTS)
    with pytest.raises(DataError, match=r"both text files \(README.md.*record files \(a.jsonl"):
        open_source(str(tmp_path))


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"a\.txt: not UTF-8 text at byte 3"):
        open_source(str(tmp_path / "a.txt"))
