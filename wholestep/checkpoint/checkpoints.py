"""Checkpoints of a run: its state, written in the background, read back onto any mesh.

A checkpoint is a directory named by its step. It holds JSON and array data, nothing that is ever executed:

    <step>/state/     every array, by name, in TensorStore's format: each device writes its shards, and reads its own
    <step>/manifest/  JSON: name -> logical shape, dtype
    <step>/extra/     JSON: what each process gave beside its arrays

Orbax makes it atomic: it is written beside and renamed, so a run that is killed leaves its earlier checkpoints alone.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import LatestN

from wholestep.errors import CheckpointError, nearest

_SHOWN = 3  # how many differences between a checkpoint and a model an error names
_ASIDE = ".replaced-"  # prefix of a checkpoint that is out of the way until the one that replaces it is complete


class Checkpoints:
    """The checkpoints in one directory; a context manager that finishes saving on its way out.

    In a run of several processes each of them makes one and calls the same methods in the same order.
    """

    def __init__(self, directory: Path, keep: int | None = None) -> None:
        """Open `directory`; it is made if missing, and what an interrupted save left in it is removed.

        `keep` of the newest checkpoints stay. None opens for reading only: nothing is made or removed, so that a
        directory can be read while a run saves to it.

        Raises:
            CheckpointError: `keep` is less than 1, or the directory cannot be opened.
        """
        if keep is not None and keep < 1:
            raise CheckpointError(f"keep is {keep}; a run keeps at least 1 checkpoint")
        self.directory = Path(directory).absolute()
        self.keep = keep
        options = ocp.CheckpointManagerOptions(
            preservation_policy=LatestN(keep), create=keep is not None, cleanup_tmp_directories=keep is not None
        )
        try:
            if self.directory.exists() and not self.directory.is_dir():
                raise NotADirectoryError("it is not a directory")
            self._manager = ocp.CheckpointManager(self.directory, options=options)
        except OSError as error:
            raise CheckpointError(f"{self.directory} cannot be opened: {_line(error)}") from error
        self._replacing = keep is not None  # perhaps: a run may have been killed while it replaced one
        self._settle_replaced()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish saving and let go of the directory. Raises CheckpointError as `wait` does."""
        try:
            self.wait()
        finally:
            self._manager.close()

    def save(
        self, step: int, state: Mapping[str, jax.Array], shapes: Mapping[str, tuple[int, ...]], extra: dict[str, Any]
    ) -> None:
        """Begin to save; returns once the arrays may be donated or deleted.

        Waits for the save before. The latest step may be saved again; the old one stays until the new is complete.

        Args:
            state: name -> global array, of its stored shape.
            shapes: name -> logical shape, without padding; a scalar, `()`, may be stored as a vector's first element.
            extra: JSON-able; every process's own is kept.

        Raises:
            CheckpointError: there are checkpoints of later steps, the save before failed, or this one cannot begin.
            TypeError: `extra` is not JSON-able.
        """
        assert self.keep is not None, "opened for reading"
        _check_shapes(state, shapes)
        latest = self.latest()
        if latest is not None and latest > step:
            later = f"checkpoint {latest}, later than {step}"
            raise CheckpointError(f"{self.directory} has a {later}: resume from it or choose another directory")
        manifest = {name: {"shape": shapes[name], "dtype": str(array.dtype)} for name, array in state.items()}
        # Serialized here and now: the caller goes on to change what `extra` refers to.
        extras = [json.loads(text) for text in _all_processes(json.dumps(extra))]
        if latest == step:
            self._set_aside(step)
        arrays = {name: array for name, array in state.items() if array.size}
        items = ocp.args.Composite(
            state=ocp.args.PyTreeSave(arrays),
            manifest=ocp.args.JsonSave(manifest),
            extra=ocp.args.JsonSave({"processes": extras}),
        )
        try:
            self._manager.save(step, args=items, force=True)
        except Exception as error:
            raise self._failed(error) from error

    def wait(self) -> None:
        """Return when nothing is being saved. Raises CheckpointError, once, if saving in the background failed."""
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failed(error) from error
        self._settle_replaced()

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, ascending; waits for one that is being saved, as `wait` does."""
        self.wait()
        return sorted(self._manager.all_steps())

    def latest(self) -> int | None:
        """The last of `steps()`; None without any."""
        return max(self.steps(), default=None)

    def restore(
        self, step: int, like: Mapping[str, jax.ShapeDtypeStruct], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, jax.Array]:
        """The state of a checkpoint, on the mesh of `like`, whichever mesh it was saved on.

        `like` is name -> stored shape, dtype and sharding that are wanted, `shapes` name -> logical shape. Each
        device's shards are read straight to it, and padding is zero.

        Raises:
            CheckpointError: there is no such checkpoint, it is incomplete or damaged, or it differs from what is
                wanted in a name, a logical shape or a dtype; that is found before an array is read.
        """
        _check_shapes(like, shapes)
        wanted = {name: jax.ShapeDtypeStruct(shapes[name], array.dtype) for name, array in like.items()}
        differences = _differences(self.describe(step), wanted)
        if differences:
            more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
            text = "; ".join(differences[:_SHOWN]) + more
            raise CheckpointError(f"checkpoint {step} in {self.directory} does not fit: {text}; another model?")
        arguments = {
            name: ocp.ArrayRestoreArgs(sharding=array.sharding, global_shape=array.shape, strict=False)
            for name, array in like.items()
            if array.size  # Orbax stores nothing that is empty
        }
        state = self._read(step, "state", _arrays(arguments))
        for name in [name for name in like if name not in state]:
            state[name] = jnp.zeros(like[name].shape, like[name].dtype, device=like[name].sharding)
        return {name: _zero_padding(state[name], shapes[name]) for name in like}

    def extra(self, step: int, process: int | None = None) -> dict[str, Any]:
        """What a process gave as `extra` when it saved: process number `process`, by default this one.

        Raises:
            CheckpointError: there is no such checkpoint, it is incomplete, or, without `process`, it was saved by
                another number of processes, so that none of them is this one.
        """
        extras = self._read(step, "extra", ocp.args.JsonRestore(), itemgetter("processes"))
        if process is None and len(extras) != jax.process_count():
            raise CheckpointError(
                f"checkpoint {step} in {self.directory} was saved by {len(extras)} processes, each of which kept its "
                f"own place in the data, and this run has {jax.process_count()}: run as many"
            )
        return extras[jax.process_index() if process is None else process]

    def describe(self, step: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Name -> logical shape and dtype of everything in a checkpoint. Raises CheckpointError as `restore` does."""
        return self._read(step, "manifest", ocp.args.JsonRestore(), _described)

    def tensors(self, step: int, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Each of `names` with its whole value, of the logical shape, on the host; one at a time, no mesh needed.

        Raises:
            CheckpointError: there is no such checkpoint or name, or the checkpoint is incomplete or damaged.
        """
        saved, names = self.describe(step), list(names)
        for name in names:
            if name not in saved:
                raise CheckpointError(f"checkpoint {step} in {self.directory} has no {name!r}{nearest(name, saved)}")
        return ((name, self._tensor(step, name, saved[name])) for name in names)

    def _tensor(self, step: int, name: str, logical: jax.ShapeDtypeStruct) -> np.ndarray:
        if not logical.size:
            return np.zeros(logical.shape, logical.dtype)
        stored = self._read(step, "state", _arrays({name: ocp.RestoreArgs(restore_type=np.ndarray)}))[name]
        real = tuple(slice(size) for size in logical.shape or (1,) * stored.ndim)
        return np.asarray(stored[real]).reshape(logical.shape)

    def _read(self, step: int, item: str, arguments: Any, parse: Callable[[Any], Any] = lambda value: value) -> Any:
        """One item of a checkpoint, parsed. Raises CheckpointError, whatever is wrong with it."""
        steps = self.steps()
        if step not in steps:
            missing = f"there is no checkpoint {step} in {self.directory}; there are {steps}"
            raise CheckpointError(missing if steps else f"there are no checkpoints in {self.directory}")
        try:
            return parse(self._manager.restore(step, args=ocp.args.Composite(**{item: arguments}))[item])
        except Exception as error:
            problem = f"it may be incomplete or damaged ({item}: {_line(error)})"
            raise CheckpointError(f"checkpoint {step} in {self.directory} cannot be read; {problem}") from error

    def _failed(self, error: Exception) -> CheckpointError:
        # Orbax has already struck off its list what it would have removed had the save succeeded.
        self._manager.reload()
        self._settle_replaced()
        return CheckpointError(f"a checkpoint could not be saved in {self.directory}: {_line(error)}")

    def _set_aside(self, step: int) -> None:
        """Move a checkpoint out of the way of one of the same step."""
        self._replacing = True
        if jax.process_index() == 0:
            (self.directory / str(step)).rename(self.directory / f"{_ASIDE}{step}")
        multihost_utils.sync_global_devices("checkpoint set aside")
        self._manager.reload()

    def _settle_replaced(self) -> None:
        """Remove a checkpoint that was set aside if the new one is complete, and put it back if it is not."""
        if not self._replacing:
            return
        if jax.process_index() == 0:
            for aside in self.directory.glob(f"{_ASIDE}*"):
                new = self.directory / aside.name.removeprefix(_ASIDE)
                if int(new.name) in self._manager.all_steps():
                    shutil.rmtree(aside)
                else:
                    aside.rename(new)
        multihost_utils.sync_global_devices("checkpoint settled")
        self._manager.reload()
        self._replacing = False


def _arrays(arguments: dict[str, ocp.RestoreArgs]) -> ocp.args.PyTreeRestore:
    """Read these names and no others."""
    return ocp.args.PyTreeRestore(dict.fromkeys(arguments, 0), restore_args=arguments, partial_restore=True)


def _described(manifest: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(tuple(it["shape"]), jnp.dtype(it["dtype"])) for name, it in manifest.items()}


def _differences(saved: Mapping[str, jax.ShapeDtypeStruct], wanted: Mapping[str, jax.ShapeDtypeStruct]) -> list[str]:
    """What differs in name, shape or dtype, in words, by name."""

    def said(spec: jax.ShapeDtypeStruct | None) -> str:
        return f"{spec.dtype} {spec.shape}" if spec is not None else "missing"

    pairs = [(name, said(saved.get(name)), said(wanted.get(name))) for name in sorted(saved.keys() | wanted.keys())]
    return [f"{name} is {there} in it and {here} in the model" for name, there, here in pairs if there != here]


def _check_shapes(stored: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    assert stored.keys() == shapes.keys(), f"names without array or shape: {sorted(stored.keys() ^ shapes.keys())}"
    for name, array in stored.items():
        real = shapes[name] or (1,) * min(array.ndim, 1)
        fits = len(real) == array.ndim and all(size <= padded for size, padded in zip(real, array.shape, strict=True))
        assert fits, f"{name}: {array.shape} does not hold {shapes[name]}"


def _zero_padding(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`array` with zeros outside its logical shape, whatever the mesh that saved it had there."""
    shape = shape or (1,) * array.ndim
    if array.shape == shape:
        return array
    shards = []
    for shard in array.addressable_shards:
        data = shard.data
        starts = [part.start or 0 for part in shard.index]
        real = tuple(slice(max(size - start, 0)) for size, start in zip(shape, starts, strict=True))
        if any(part.stop < size for part, size in zip(real, data.shape, strict=True)):
            zeroed = np.zeros(data.shape, data.dtype)
            zeroed[real] = np.asarray(data)[real]
            data = jax.device_put(zeroed, data.sharding)
        shards.append(data)
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)


def _all_processes(text: str) -> list[str]:
    """The text of every process, by its index."""
    if jax.process_count() == 1:
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(data.size))
    texts = multihost_utils.process_allgather(np.pad(data, (0, int(sizes.max()) - data.size)))
    return [row[:size].tobytes().decode() for row, size in zip(texts, sizes, strict=True)]


def _line(error: BaseException) -> str:
    """What an error says first, without TensorStore's settings; or its type."""
    return re.split(r"\n| \[tensorstore| See full", str(error).strip())[0] or type(error).__name__
