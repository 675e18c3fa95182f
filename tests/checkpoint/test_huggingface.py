"""Hugging Face directories: what is written is what is read, in pieces, and faults are named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from wholestep.checkpoint.huggingface import Reader, divided, write
from wholestep.errors import CheckpointError

CONFIG = {"model_type": "test", "hidden_size": 4}


def arrays() -> dict[str, Any]:
    return {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.arange(6, dtype=np.float32).reshape(2, 3).astype(ml_dtypes.bfloat16),
        "c": torch.arange(8).reshape(4, 2).bfloat16().T,
        "d": np.array(7, dtype=np.int64),
        "e": np.zeros((0, 3), dtype=np.float16),
        "f": torch.tensor([True, False]),
    }


def plain(value: Any) -> np.ndarray:
    """The value in float32 numpy."""
    return value.float().numpy() if isinstance(value, torch.Tensor) else np.asarray(value, dtype=np.float32)


@pytest.mark.parametrize("max_shard_bytes", [1_000, 40, 1])
def test_round_trip(tmp_path: Path, max_shard_bytes: int) -> None:
    tensors = arrays()
    directory = tmp_path / "new" / "model"
    write(directory, tensors, tensors.items(), CONFIG, max_shard_bytes=max_shard_bytes)
    shards = sorted(directory.glob("*.safetensors"))
    assert (len(shards) == 1) == (max_shard_bytes == 1_000)
    assert shards[0].name == (
        "model.safetensors" if len(shards) == 1 else f"model-00001-of-{len(shards):05}.safetensors"
    )
    assert list((tmp_path / "new").iterdir()) == [directory]

    reader = Reader(directory)
    assert reader.config == CONFIG
    assert sorted(reader.names()) == sorted(tensors)
    for name, value in tensors.items():
        assert reader.shape(name) == tuple(value.shape)
        assert reader.dtype(name).name == str(value.dtype).removeprefix("torch.")
        assert reader.read(name).dtype == reader.dtype(name)
        np.testing.assert_array_equal(plain(reader.read(name)), plain(value))
    reader.require(tensors)


def test_the_files_are_the_safetensors_librarys_own(tmp_path: Path) -> None:
    tensors = arrays()
    write(tmp_path / "model", tensors, tensors.items(), CONFIG)
    loaded = load_file(tmp_path / "model" / "model.safetensors")
    for name, value in tensors.items():
        np.testing.assert_array_equal(plain(loaded[name]), plain(value))


def test_index_says_where_tensors_are(tmp_path: Path) -> None:
    tensors = arrays()
    write(tmp_path / "model", tensors, tensors.items(), CONFIG, max_shard_bytes=60)
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    # 48 bytes; then 12 + 16 + 8 + 0 + 2.
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert index["weight_map"] == {"a": first, "b": first, "c": second, "d": second, "e": second, "f": second}
    assert index["metadata"]["total_size"] == 86


def test_read_takes_a_slice(tmp_path: Path) -> None:
    tensors = arrays()
    write(tmp_path / "model", tensors, tensors.items(), CONFIG)
    reader = Reader(tmp_path / "model")
    np.testing.assert_array_equal(reader.read("a", (slice(1, 3), slice(0, 2))), tensors["a"][1:3, :2])
    np.testing.assert_array_equal(reader.read("b", (slice(1, 2),)), tensors["b"][1:2])
    with pytest.raises(CheckpointError, match=r"3 slices for 'a', whose shape is \(3, 4\)"):
        reader.read("a", (slice(None),) * 3)


def test_tensors_are_asked_for_one_at_a_time(tmp_path: Path) -> None:
    plan = {f"t{i}": np.zeros(1000, dtype=np.float32) for i in range(4)}
    written = []

    def produce() -> Iterator[tuple[str, np.ndarray]]:
        for name, value in plan.items():
            written.append(len(list(tmp_path.rglob("*.safetensors"))))
            yield name, value

    write(tmp_path / "model", plan, produce(), CONFIG, max_shard_bytes=4000)
    # Each has a shard of its own, opened before it is asked for and after the one before it was closed.
    assert written == [1, 2, 3, 4]


def test_refuses_to_overwrite(tmp_path: Path) -> None:
    tensors = arrays()
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", tensors, tensors.items(), CONFIG)
    before = (tmp_path / "empty" / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="already exists and is not empty"):
        write(tmp_path / "empty", tensors, tensors.items(), CONFIG)
    assert (tmp_path / "empty" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ([("a", np.zeros(2))], "the plan's next tensor is 'b', but 'nothing' came"),
        ([("b", np.zeros(3))], "the plan's next tensor is 'a', but 'b' came"),
        ([("a", np.zeros(3))], r"tensor 'a' was planned as float64\[2\] and came as float64\[3\]"),
        ([("a", np.zeros(2, np.float32))], r"tensor 'a' was planned as float64\[2\] and came as float32\[2\]"),
        ([("a", np.zeros(2)), ("b", np.zeros(3)), ("c", np.zeros(3))], "tensor 'c' came after the last one"),
    ],
)
def test_a_stream_that_departs_from_the_plan_leaves_nothing(tmp_path: Path, stream: list, message: str) -> None:
    plan = {"a": np.zeros(2), "b": np.zeros(3)}
    with pytest.raises(CheckpointError, match=message):
        write(tmp_path / "model", plan, stream, CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_an_unsupported_dtype_is_refused(tmp_path: Path) -> None:
    plan = {"a": np.zeros(2, dtype=np.complex64)}
    with pytest.raises(CheckpointError, match="tensor 'a' has dtype complex64, which is not supported"):
        write(tmp_path / "model", plan, plan.items(), CONFIG)


def test_reader_refuses_pickles(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"only pickled weights \(pytorch_model.bin\).*save_pretrained"):
        Reader(tmp_path)


def test_reader_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a directory"):
        Reader(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds no weights"):
        Reader(tmp_path)
    tensors = arrays()
    directory = tmp_path / "model"
    write(directory, tensors, tensors.items(), CONFIG, max_shard_bytes=60)
    with pytest.raises(CheckpointError, match="has no tensor 'aa'; did you mean 'a'"):
        Reader(directory).read("aa")
    (directory / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config.json cannot be read"):
        _ = Reader(directory).config
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks model-00002-of-00002.safetensors"):
        Reader(directory)


def test_reader_names_damage(tmp_path: Path) -> None:
    tensors = arrays()
    write(tmp_path / "model", tensors, tensors.items(), CONFIG)
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=r"model.safetensors cannot be read"):
        Reader(tmp_path / "model")


def test_divided_by_rows() -> None:
    tensor = torch.arange(12).view(6, 2)
    parts = list(divided(["a", "b", "c"], tensor))
    assert [(name, part.tolist()) for name, part in parts] == [
        ("a", [[0, 1], [2, 3]]),
        ("b", [[4, 5], [6, 7]]),
        ("c", [[8, 9], [10, 11]]),
    ]
    assert all(part.untyped_storage().data_ptr() == tensor.data_ptr() for _, part in parts)
    scalar = np.array(7)
    assert list(divided(["a"], scalar)) == [("a", scalar)]


def test_require_lists_every_fault(tmp_path: Path) -> None:
    tensors = arrays()
    write(tmp_path / "model", tensors, tensors.items(), CONFIG)
    expected = {**tensors, "a": np.zeros((4, 3)), "layers": np.zeros(1)}
    del expected["f"]
    with pytest.raises(CheckpointError) as caught:
        Reader(tmp_path / "model").require(expected)
    assert str(caught.value).splitlines()[1:] == [
        "  'a' has shape (3, 4), the model needs (4, 3)",
        "  'layers' is missing",
        "  'f' is not a parameter of the model",
    ]
