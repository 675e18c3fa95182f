"""Checkpoints: what is saved is what is restored, on any mesh, whatever happens to the process that saves."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint.handlers import JsonCheckpointHandler

from wholestep.checkpoint.checkpoints import Checkpoints
from wholestep.errors import CheckpointError
from wholestep.parallel import Mesh, storage_shape
from wholestep.xla.devices import device_mesh

Shapes = dict[str, tuple[int, ...]]

DTYPES = {
    "parameter/layers.0.attention.q_proj.weight": jnp.float32,
    "parameter/norm.weight": jnp.bfloat16,
    "parameter/scale": jnp.float32,
    "exp_avg/layers.0.attention.q_proj.weight": jnp.float16,
    "buffer/count": jnp.int32,
    "buffer/mask": jnp.bool_,
    "buffer/none": jnp.float32,
}
SHAPES: Shapes = {
    "parameter/layers.0.attention.q_proj.weight": (10, 3),
    "parameter/norm.weight": (16,),
    "parameter/scale": (),
    "exp_avg/layers.0.attention.q_proj.weight": (10, 3),
    "buffer/count": (),
    "buffer/mask": (5,),
    "buffer/none": (0, 3),
}
EXTRA = {"step": 7, "recipe": "llama3_debug", "data": {"place": [1, 2, None], "é": 0.1}}


def values(seed: int = 0) -> dict[str, np.ndarray]:
    """Logical values of every name; none is zero where its dtype has more than two values."""
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(rng.normal(size=shape) * 100 + 1000).astype(DTYPES[name]) for name, shape in SHAPES.items()
    }


def specs(mesh: Mesh, shapes: Shapes = SHAPES) -> dict[str, jax.ShapeDtypeStruct]:
    """How each name is stored on `mesh`: buffers as copies, everything else as shards."""
    devices, result = device_mesh(mesh), {}
    for name, shape in shapes.items():
        buffer = name.startswith("buffer/")
        stored = shape if buffer else storage_shape(shape, mesh.fsdp)
        sharding = NamedSharding(devices, PartitionSpec() if buffer else PartitionSpec("fsdp"))
        result[name] = jax.ShapeDtypeStruct(stored, DTYPES.get(name, jnp.float32), sharding=sharding)
    return result


def padded(value: np.ndarray, shape: tuple[int, ...], padding: float = 0) -> np.ndarray:
    """`value` at the start of an array of `shape`, the rest `padding`."""
    whole = np.full(shape, padding, value.dtype)
    whole[tuple(slice(size) for size in value.shape or (1,) * len(shape))] = value
    return whole


def place(logical: Mapping[str, np.ndarray], mesh: Mesh, padding: float = 0) -> dict[str, jax.Array]:
    shapes = {name: value.shape for name, value in logical.items()}
    return {
        name: jax.device_put(padded(logical[name], spec.shape, padding), spec.sharding)
        for name, spec in specs(mesh, shapes).items()
    }


def assert_restored(checkpoints: Checkpoints, step: int, mesh: Mesh, logical: Mapping[str, np.ndarray]) -> None:
    shapes = {name: value.shape for name, value in logical.items()}
    like = specs(mesh, shapes)
    state = checkpoints.restore(step, like, shapes)
    assert list(state) == list(like)
    for name, array in state.items():
        assert array.dtype == like[name].dtype
        assert array.sharding == like[name].sharding
        assert_bitwise(np.asarray(array), padded(logical[name], like[name].shape), name)


def assert_bitwise(actual: np.ndarray, expected: np.ndarray, name: str) -> None:
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), name
    assert actual.tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("padding", [0, 1], ids=["zeros", "rubbish"])
def test_restores_on_any_mesh(tmp_path: Path, padding: float) -> None:
    logical = values()
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(7, place(logical, Mesh(fsdp=8), padding), SHAPES, EXTRA)
        for mesh in (Mesh(fsdp=8), Mesh(fsdp=2), Mesh(fsdp=6), Mesh(), Mesh(replicate=2, fsdp=4), Mesh(fsdp=3)):
            assert_restored(checkpoints, 7, mesh, logical)


def test_restores_onto_a_larger_mesh(tmp_path: Path) -> None:
    logical = values()
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(7, place(logical, Mesh(fsdp=2)), SHAPES, EXTRA)
        assert_restored(checkpoints, 7, Mesh(fsdp=8), logical)


def test_bits_that_are_no_numbers(tmp_path: Path) -> None:
    bits = np.array([0x7F800001, 0xFFC12345, 0x80000000, 0x00000001, 0xFF800000], np.uint32).view(np.float32)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, place({"parameter/w": bits}, Mesh(fsdp=2)), {"parameter/w": (5,)}, {})
        assert_restored(checkpoints, 1, Mesh(fsdp=4), {"parameter/w": bits})


def test_host_memory_stays_host_memory(tmp_path: Path) -> None:
    on_host = NamedSharding(device_mesh(Mesh(fsdp=4)), PartitionSpec("fsdp"), memory_kind="pinned_host")
    array = jax.device_put(padded(np.arange(1, 11, dtype=np.float32), (12,)), on_host)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, {"exp_avg/w": array}, {"exp_avg/w": (10,)}, {})
        like = {"exp_avg/w": jax.ShapeDtypeStruct((12,), jnp.float32, sharding=on_host)}
        restored = checkpoints.restore(1, like, {"exp_avg/w": (10,)})["exp_avg/w"]
    assert restored.sharding.memory_kind == "pinned_host"
    np.testing.assert_array_equal(restored, array)


def test_donated_right_after_save(tmp_path: Path) -> None:
    logical = {f"parameter/w{i}": np.random.default_rng(i).random((1 << 18, 2), np.float32) for i in range(4)}
    shapes = {name: value.shape for name, value in logical.items()}
    overwrite = jax.jit(lambda state: jax.tree.map(lambda array: array * 0 - 7, state), donate_argnums=0)
    state = place(logical, Mesh(fsdp=8))
    jax.block_until_ready(overwrite(jax.tree.map(jnp.copy, state)))  # compiled: the next call starts at once
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, shapes, {})
        jax.block_until_ready(overwrite(state))
        for name, array in checkpoints.tensors(1, logical):
            assert_bitwise(array, logical[name], name)


def test_keeps_the_last(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest() is None
        for step in (2, 4, 11):
            checkpoints.save(step, place(values(step), Mesh(fsdp=8)), SHAPES, {"step": step})
        assert checkpoints.steps() == [4, 11]
        assert checkpoints.latest() == 11
        assert_restored(checkpoints, 4, Mesh(fsdp=2), values(4))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["11", "4"]


def test_reopening_continues(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            assert checkpoints.latest() == (step - 1 or None)
            checkpoints.save(step, place(values(step), Mesh(fsdp=step)), SHAPES, {"step": step})
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [2, 3]
        for step in (2, 3):
            assert_restored(checkpoints, step, Mesh(fsdp=8), values(step))
            assert checkpoints.extra(step) == {"step": step}


def test_saving_the_latest_again_replaces_it(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        for seed in (1, 2):
            checkpoints.save(5, place(values(seed), Mesh(fsdp=8)), SHAPES, {"seed": seed})
        assert checkpoints.steps() == [5]
        assert_restored(checkpoints, 5, Mesh(fsdp=2), values(2))
        assert checkpoints.extra(5) == {"seed": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["5"]


def test_a_replacement_that_fails_leaves_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(5, place(values(1), Mesh(fsdp=8)), SHAPES, {})
        checkpoints.wait()
        monkeypatch.setattr(JsonCheckpointHandler, "_save_fn", disk_full)
        checkpoints.save(5, place(values(2), Mesh(fsdp=8)), SHAPES, {})
        with pytest.raises(CheckpointError, match="no space left"):
            checkpoints.wait()
        assert_restored(checkpoints, 5, Mesh(fsdp=8), values(1))


def test_a_replacement_that_is_killed_leaves_the_old(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(5, place(values(1), Mesh(fsdp=8)), SHAPES, {})
    (tmp_path / "5").rename(tmp_path / ".replaced-5")
    (tmp_path / "5.orbax-checkpoint-tmp").mkdir()
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        assert_restored(checkpoints, 5, Mesh(fsdp=8), values(1))


def test_an_earlier_step_is_refused(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(5, place(values(), Mesh(fsdp=8)), SHAPES, {})
        with pytest.raises(CheckpointError, match="has a checkpoint 5, later than 4"):
            checkpoints.save(4, place(values(), Mesh(fsdp=8)), SHAPES, {})
        assert checkpoints.steps() == [5]


async def disk_full(*arguments: Any) -> None:
    raise OSError("no space left")


def test_a_failed_save_surfaces_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, place(values(1), Mesh(fsdp=8)), SHAPES, {})
        checkpoints.wait()
        with monkeypatch.context() as context:
            context.setattr(JsonCheckpointHandler, "_save_fn", disk_full)
            checkpoints.save(2, place(values(2), Mesh(fsdp=8)), SHAPES, {})
            with pytest.raises(CheckpointError, match=r"could not be saved .*no space left"):
                checkpoints.wait()
        assert checkpoints.steps() == [1]
        assert_restored(checkpoints, 1, Mesh(fsdp=8), values(1))
        checkpoints.save(3, place(values(3), Mesh(fsdp=8)), SHAPES, {})
        assert checkpoints.steps() == [3]


def test_extra_is_taken_when_saved(tmp_path: Path) -> None:
    extra = {**EXTRA, "list": [1]}
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(7, place(values(), Mesh(fsdp=8)), SHAPES, extra)
        extra["list"].append(2)
        assert checkpoints.extra(7) == {**EXTRA, "list": [1]} == checkpoints.extra(7, process=0)
        with pytest.raises(TypeError, match="not JSON serializable"):
            checkpoints.save(8, place(values(), Mesh(fsdp=8)), SHAPES, {"a": object()})


def test_extra_of_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(7, place(values(), Mesh(fsdp=8)), SHAPES, EXTRA)
        checkpoints.wait()
        (tmp_path / "7/extra/metadata").write_text('{"processes": [{"place": 0}, {"place": 1}]}')
        assert checkpoints.extra(7, process=1) == {"place": 1}
        with pytest.raises(CheckpointError, match=r"saved by 2 processes, .* this run has 1: run as many"):
            checkpoints.extra(7)


def test_tensors_are_whole_and_lazy(tmp_path: Path) -> None:
    logical = values()
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(7, place(logical, Mesh(fsdp=8), padding=1), SHAPES, EXTRA)
    with Checkpoints(tmp_path) as checkpoints:
        described = checkpoints.describe(7)
        assert {name: (spec.shape, spec.dtype) for name, spec in described.items()} == {
            name: (value.shape, value.dtype) for name, value in logical.items()
        }
        names = list(reversed(logical))
        read = checkpoints.tensors(7, names)
        for name, (read_name, array) in zip(names, read, strict=True):
            assert read_name == name
            assert isinstance(array, np.ndarray)
            assert_bitwise(array, logical[name], name)
        with pytest.raises(CheckpointError, match=r"has no 'parameter/norm.wait'; did you mean 'parameter/"):
            checkpoints.tensors(7, ["parameter/norm.wait"])


def test_awkward_names(tmp_path: Path) -> None:
    names = ["a", "a/b", "a.b", "/a", "../a", "a//b", "a/0.0", "a/.zarray", "ü", "%2F", ".", " "]
    logical = {name: np.full((4,), i, np.float32) for i, name in enumerate(names)}
    with Checkpoints(tmp_path / "inner", keep=1) as checkpoints:
        checkpoints.save(1, place(logical, Mesh(fsdp=2)), dict.fromkeys(names, (4,)), {})
        assert_restored(checkpoints, 1, Mesh(fsdp=4), logical)
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]


def change(name: str, shape: tuple[int, ...] | None = None, dtype: Any = None) -> Callable[..., None]:
    def apply(like: dict[str, Any], shapes: Shapes) -> None:
        like[name] = jax.ShapeDtypeStruct(
            like[name].shape if shape is None else shape, dtype or like[name].dtype, sharding=like[name].sharding
        )
        shapes[name] = shapes[name] if shape is None else shape

    return apply


def drop(like: dict[str, Any], shapes: Shapes) -> None:
    del like["parameter/norm.weight"], shapes["parameter/norm.weight"]


def add(like: dict[str, Any], shapes: Shapes) -> None:
    for name in ("parameter/new", "parameter/new2", "parameter/new3", "parameter/new4", "parameter/new5"):
        like[name], shapes[name] = like["parameter/norm.weight"], (16,)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (drop, r"parameter/norm.weight is bfloat16 \(16,\) in it and missing in the model; another model\?$"),
        (add, r": parameter/new is missing in it and bfloat16 \(16,\) in .*/new3 .*; and 2 more; another model\?$"),
        (
            change("parameter/norm.weight", shape=(24,)),
            r": parameter/norm.weight is bfloat16 \(16,\) in it and bfloat16 \(24,\) in the model; another",
        ),
        (change("buffer/mask", dtype=jnp.int8), r": buffer/mask is bool \(5,\) in it and int8 \(5,\) in the model"),
    ],
    ids=["missing", "new", "shape", "dtype"],
)
def test_another_model_is_one_line(tmp_path: Path, edit: Callable[..., None], message: str) -> None:
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(7, place(values(), Mesh(fsdp=8)), SHAPES, EXTRA)
        like, shapes = specs(Mesh(fsdp=8)), dict(SHAPES)
        edit(like, shapes)
        with pytest.raises(CheckpointError, match=message) as raised:
            checkpoints.restore(7, like, shapes)
    assert "\n" not in str(raised.value)


def test_nothing_to_restore(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "missing") as checkpoints:
        assert checkpoints.latest() is None
        with pytest.raises(CheckpointError, match=r"there are no checkpoints in .*missing"):
            checkpoints.extra(1)
    assert not (tmp_path / "missing").exists()
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(7, place(values(), Mesh(fsdp=8)), SHAPES, EXTRA)
        with pytest.raises(CheckpointError, match=r"there is no checkpoint 6 in .*; there are \[7\]"):
            checkpoints.restore(6, specs(Mesh(fsdp=8)), SHAPES)


def test_refuses_to_open(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file cannot be opened"):
        Checkpoints(tmp_path / "file", keep=1)
    with pytest.raises(CheckpointError, match="keep is 0"):
        Checkpoints(tmp_path, keep=0)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# Orbax leaves coroutines behind that it never awaits or looks at when a read fails.
@pytest.mark.filterwarnings("ignore:.*coroutine:RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", [truncate, Path.unlink])
@pytest.mark.parametrize("pattern", ["manifest/metadata", "state/manifest.ocdbt", "state/**/d/*"])
def test_damage_is_found(tmp_path: Path, pattern: str, damage: Callable[[Path], None]) -> None:
    logical = {"parameter/w": np.random.default_rng(0).random((1000, 8), np.float32)}
    shapes = {"parameter/w": (1000, 8)}
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(7, place(logical, Mesh(fsdp=8)), shapes, EXTRA)
    for path in (tmp_path / "7").glob(pattern):
        damage(path)
    with (
        Checkpoints(tmp_path, keep=1) as checkpoints,
        pytest.raises(CheckpointError, match=r"checkpoint 7 in .* cannot be read; it may be incomplete or damaged"),
    ):
        checkpoints.restore(7, specs(Mesh(fsdp=8), shapes), shapes)
    gc.collect()


def test_a_manifest_of_something_else(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(7, place(values(), Mesh(fsdp=8)), SHAPES, EXTRA)
        checkpoints.wait()
        for item, read in (("manifest", checkpoints.describe), ("extra", checkpoints.extra)):
            (tmp_path / "7" / item / "metadata").write_text('{"parameter/w": {}}')
            with pytest.raises(CheckpointError, match=rf"incomplete or damaged \({item}: "):
                read(7)


SAVE_AND_DIE = """
import sys
from pathlib import Path
import jax.numpy as jnp, numpy as np
from wholestep.checkpoint.checkpoints import Checkpoints

rows = [np.random.default_rng(i + 10).random((1 << 20, 2), np.float32) for i in range(8)]
state = {f"parameter/w{i}": jnp.asarray(value) for i, value in enumerate(rows)}
with Checkpoints(Path(sys.argv[1]), keep=2) as checkpoints:
    checkpoints.save(2, state, {name: array.shape for name, array in state.items()}, {"step": 2})
"""


def written(directory: Path) -> int:
    """Bytes of the unfinished checkpoint, -1 without one."""
    total = -1
    for folder, _, files in os.walk(directory):  # passes over what is renamed while we look
        if "/2.orbax-checkpoint-tmp" in folder:
            total += 1
            with contextlib.suppress(FileNotFoundError):
                total += sum((Path(folder) / file).stat().st_size for file in files)
    return total


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "begun": lambda directory: written(directory) >= 0,
    "some": lambda directory: written(directory) > 2_000_000,
    "half": lambda directory: written(directory) > 32_000_000,
    "complete": lambda directory: (directory / "2").exists(),
}


def test_killed_while_saving(tmp_path: Path) -> None:
    def large(seed: int) -> dict[str, np.ndarray]:
        rows = [np.random.default_rng(i + seed).random((1 << 20, 2), np.float32) for i in range(8)]
        return {f"parameter/w{i}": value for i, value in enumerate(rows)}

    small = {"parameter/w": np.arange(20, dtype=np.float32).reshape(10, 2)}
    processes = {}
    for moment in MOMENTS:
        with Checkpoints(tmp_path / moment, keep=2) as checkpoints:
            checkpoints.save(1, place(small, Mesh(fsdp=8)), {"parameter/w": (10, 2)}, {"step": 1})
        arguments = [sys.executable, "-c", SAVE_AND_DIE, str(tmp_path / moment)]
        processes[moment] = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    alive = dict(processes)
    while alive:
        for moment, process in list(alive.items()):
            if process.poll() is not None or MOMENTS[moment](tmp_path / moment):
                process.kill()
                del alive[moment]
        time.sleep(0.001)
    interrupted = 0
    for moment, process in processes.items():
        _, errors = process.communicate()
        complete = (tmp_path / moment / "2").exists()
        assert process.returncode == -signal.SIGKILL or complete, (moment, errors)
        interrupted += written(tmp_path / moment) >= 0
        with Checkpoints(tmp_path / moment, keep=2) as checkpoints:
            assert checkpoints.steps() == ([1, 2] if complete else [1]), moment
            assert_restored(checkpoints, 1, Mesh(fsdp=2), small)
            assert checkpoints.extra(1) == {"step": 1}
            if complete:
                for name, array in checkpoints.tensors(2, large(10)):
                    assert_bitwise(array, large(10)[name], name)
            checkpoints.save(2, place(small, Mesh(fsdp=8)), {"parameter/w": (10, 2)}, {"step": 2})
            assert_restored(checkpoints, 2, Mesh(fsdp=6), small)
        assert sorted(path.name for path in (tmp_path / moment).iterdir()) == ["1", "2"]
    assert interrupted, "every save was complete before it could be killed"


def test_closing_tells_of_a_failed_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JsonCheckpointHandler, "_save_fn", disk_full)
    with pytest.raises(CheckpointError, match="no space left"), Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, place(values(), Mesh(fsdp=8)), SHAPES, {})
