"""What PyTorch does with the bytes of a whole storage, where that is on `tpu`: copying, saving and loading."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wholestep.device.buffer import Buffer, empty, sized
from wholestep.device.kernels import upload
from wholestep.device.transfer import from_jax


def new(count: int = 0) -> torch.UntypedStorage:
    """So many bytes, never written."""
    return sized(empty((count,), torch.uint8)).untyped_storage()


def clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A storage of its own with the same contents: arrays are never written, so the two hold one."""
    buffer = storage.buffer
    size = storage.nbytes() // buffer.dtype.itemsize
    copy = sized(empty((size,), buffer.dtype)).untyped_storage()
    value = buffer.array if buffer.value is not None else None
    copy.buffer = Buffer(value, buffer.shape, buffer.dtype)
    return copy


def to_cpu(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """The same bytes on the CPU; of 64-bit types 8 for each element, as there."""
    buffer = storage.buffer
    return from_jax(buffer.array, buffer.dtype).reshape(-1).clone().untyped_storage()


def from_cpu(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """These bytes on the device; what they mean, the tensors over them will say."""
    return _from_bytes(_bytes(storage))


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def _from_bytes(data: Tensor) -> torch.UntypedStorage:
    return sized(upload(data)).untyped_storage()


def address(storage: torch.UntypedStorage) -> int:
    """What tells it from others, not where its bytes are, which may change with any write."""
    return storage._cdata


def reduce(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """How it is pickled."""
    return _from_bytes, (_bytes(to_cpu(storage)),)


def typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    """A storage with a dtype, as old files have it."""
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def reduce_typed(storage: torch.TypedStorage) -> tuple[Any, ...]:
    """How one with a dtype is pickled."""
    return typed, (storage._untyped_storage, storage.dtype)


def typed_storage(tensor: Tensor) -> torch.TypedStorage:
    """The storage of `tensor`, its size known."""
    return typed(sized(tensor).untyped_storage(), tensor.dtype)
