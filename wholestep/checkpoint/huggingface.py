"""Model directories in the Hugging Face layout: `config.json` and safetensors shards, written and read in pieces.

Nothing here knows a model: names are those of the files, and a family's module says how they map to its parameters.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from wholestep.errors import CheckpointError, nearest

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CONFIG_FILE = "config.json"

_SHOWN = 10  # how many differences between a directory and a model an error names

# The safetensors format's name of each numpy dtype.
_CODES = {
    np.dtype(np.float64): "F64",
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.int64): "I64",
    np.dtype(np.int32): "I32",
    np.dtype(np.int16): "I16",
    np.dtype(np.int8): "I8",
    np.dtype(np.uint8): "U8",
    np.dtype(np.bool_): "BOOL",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


class Shaped(Protocol):
    """Anything that says a shape and a dtype: an array, a tensor on the meta device, a `jax.ShapeDtypeStruct`."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


def write(
    directory: str | os.PathLike[str],
    plan: Mapping[str, Shaped],
    tensors: Iterable[tuple[str, Any]],
    config: Mapping[str, Any],
    *,
    max_shard_bytes: int = 5_000_000_000,
    beside: Callable[[Path], None] | None = None,
) -> None:
    """Write a model that `transformers` can load, holding one tensor in memory at a time.

    `plan` gives every tensor's shape and dtype (numpy's or torch's) by its name in the files; `tensors` then yields
    each name with its values, a numpy, torch or JAX array on the host, in the plan's order. A shard holds
    `max_shard_bytes` of tensors, or one tensor that is larger. `config` becomes `config.json`; `beside` is called with
    the folder in the making, to add what belongs with a model (a tokenizer).

    The directory appears whole or not at all. Raises CheckpointError if it exists and is not empty, or if `tensors`
    departs from the plan.
    """
    target = Path(directory).absolute()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise CheckpointError(f"{directory} already exists and is not empty: choose another directory or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    partial.mkdir()
    try:
        _write_json(partial / CONFIG_FILE, config)
        if beside is not None:
            beside(partial)
        _write_shards(partial, plan, iter(tensors), max_shard_bytes)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_shards(
    directory: Path, plan: Mapping[str, Shaped], tensors: Iterator[tuple[str, Any]], max_shard_bytes: int
) -> None:
    specs = {name: (tuple(spec.shape), _numpy_dtype(spec.dtype, name)) for name, spec in plan.items()}
    sizes = {name: int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for name, (shape, dtype) in specs.items()}
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    files = [SINGLE_FILE]
    if len(shards) > 1:
        files = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
        weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        _write_json(directory / INDEX_FILE, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map})
    for file, names in zip(files, shards, strict=True):
        _write_shard(directory / file, {name: specs[name] for name in names}, tensors)
    if (extra := next(tensors, None)) is not None:
        raise CheckpointError(f"tensor {extra[0]!r} came after the last one of the plan")


def _write_shard(
    path: Path, specs: Mapping[str, tuple[tuple[int, ...], np.dtype]], tensors: Iterator[tuple[str, Any]]
) -> None:
    # The format: the header's length in 8 bytes, the header as JSON padded to a multiple of 8, then the values.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, dtype) in specs.items():
        end = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for name, (shape, dtype) in specs.items():
            found, value = next(tensors, ("nothing", None))
            if found != name:
                raise CheckpointError(f"the plan's next tensor is {name!r}, but {found!r} came")
            array = _numpy(value)
            if array.shape != shape or array.dtype != dtype:
                came = _text(array.shape, array.dtype)
                raise CheckpointError(f"tensor {name!r} was planned as {_text(shape, dtype)} and came as {came}")
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def divided(names: Sequence[str], tensor: Any) -> Iterator[tuple[str, Any]]:
    """Each of `names` with its equal share of the rows of `tensor`, numpy's or torch's, in order; views, no copies."""
    if len(names) == 1:
        yield names[0], tensor  # which may be a scalar, without rows
        return
    rows, rest = divmod(tensor.shape[0], len(names))
    assert not rest, f"{tensor.shape[0]} rows for {len(names)} tensors"
    for number, name in enumerate(names):
        yield name, tensor[number * rows : (number + 1) * rows]


class Reader:
    """A Hugging Face model directory, read tensor by tensor and slice by slice; nothing is ever unpickled.

    Raises CheckpointError, here or when something is read, for a file that is missing or damaged and for a tensor
    that is not there.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._files: dict[str, Any] = {}
        self._file_of = self._find_tensors()

    @cached_property
    def config(self) -> dict[str, Any]:
        return self._read_json(CONFIG_FILE)

    def names(self) -> list[str]:
        return list(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> np.dtype:
        """The stored dtype; bfloat16 is `ml_dtypes.bfloat16`."""
        code = self._slice(name).get_dtype()
        if code not in _DTYPES:
            raise CheckpointError(f"{self.directory}: tensor {name!r} has dtype {code}, which is not supported")
        return _DTYPES[code]

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """The tensor's values, or only the part at `index` (a slice for each leading dimension), as stored."""
        dtype, shape = self.dtype(name), self.shape(name)
        if len(index) > len(shape):
            raise CheckpointError(f"{self.directory}: {len(index)} slices for {name!r}, whose shape is {shape}")
        return np.asarray(self._slice(name)[index]).view(dtype)

    def require(self, expected: Mapping[str, Shaped], left_out: Callable[[str], bool] = lambda name: False) -> None:
        """Raise CheckpointError, which names the first faults, unless the tensors' names and shapes are the expected
        ones; there may be others for which `left_out` is true."""
        faults: list[str] = []
        for name, spec in expected.items():
            if name not in self._file_of:
                # For those that are shown: in a file of other names each would be compared with all of these.
                likely = nearest(name, self._file_of, count=1) if len(faults) < _SHOWN else ""
                faults.append(f"{name!r} is missing{likely}")
            elif self.shape(name) != (wanted := tuple(spec.shape)):
                faults.append(f"{name!r} has shape {self.shape(name)}, the model needs {wanted}")
        others = [name for name in self._file_of if name not in expected and not left_out(name)]
        faults += [f"{name!r} is not a parameter of the model" for name in others]
        if faults:
            more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
            shown = [*faults[:_SHOWN], *more]
            raise CheckpointError("\n  ".join([f"{self.directory} does not fit the model:", *shown]))

    def _find_tensors(self) -> dict[str, str]:
        if (self.directory / INDEX_FILE).exists():
            file_of = self._read_json(INDEX_FILE).get("weight_map")
            if not isinstance(file_of, dict):
                raise CheckpointError(f"{self.directory / INDEX_FILE} has no weight_map")
            if missing := sorted({file for file in file_of.values() if not (self.directory / file).exists()}):
                raise CheckpointError(f"{self.directory} lacks {', '.join(missing)}, which {INDEX_FILE} names")
            return file_of
        if (self.directory / SINGLE_FILE).exists():
            return dict.fromkeys(self._open(SINGLE_FILE).keys(), SINGLE_FILE)
        if not self.directory.is_dir():
            raise CheckpointError(f"{self.directory} is not a directory")
        if pickles := sorted(path.name for path in self.directory.glob("pytorch_model*.bin")):
            raise CheckpointError(
                f"{self.directory} holds only pickled weights ({pickles[0]}), which can run any code when loaded and "
                "are never read here; fetch the model's safetensors files or, if you trust its origin, load it with "
                "transformers and save it again with save_pretrained"
            )
        raise CheckpointError(f"{self.directory} holds no weights: neither {SINGLE_FILE} nor {INDEX_FILE} is there")

    def _slice(self, name: str) -> Any:
        if name not in self._file_of:
            raise CheckpointError(f"{self.directory} has no tensor {name!r}{nearest(name, self._file_of)}")
        file = self._file_of[name]
        try:
            return self._open(file).get_slice(name)
        except SafetensorError as error:
            raise CheckpointError(f"{self.directory / file}: {error}") from error

    def _open(self, file: str) -> Any:
        if file not in self._files:
            try:
                self._files[file] = safe_open(self.directory / file, framework="np")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{self.directory / file} cannot be read: {error}") from error
        return self._files[file]

    def _read_json(self, file: str) -> dict[str, Any]:
        path = self.directory / file
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _numpy_dtype(dtype: Any, name: str) -> np.dtype:
    converted = np.dtype(str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype)
    if converted not in _CODES:
        raise CheckpointError(f"tensor {name!r} has dtype {dtype}, which is not supported")
    return converted


def _numpy(value: Any) -> np.ndarray:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    value = value.detach()
    if value.dtype == torch.bfloat16:
        return value.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


def _text(shape: tuple[int, ...], dtype: np.dtype) -> str:
    return f"{dtype.name}{list(shape)}"
