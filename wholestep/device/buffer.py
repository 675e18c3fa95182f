"""What the storage of `tpu` tensors holds, and tensors over it.

A tensor's sizes, strides and offset are PyTorch's own, and views share a storage as they do on any device. The storage
holds no bytes but one `Buffer`: an array that is never written, only replaced by another one. So a write through any
tensor is seen by all of that storage, and a copy that nobody writes to costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import torch
from torch import Tensor

from wholestep.device.bits import reinterpreted
from wholestep.device.strides import View, contiguous
from wholestep.device.transfer import from_jax, to_jax
from wholestep.errors import WholestepError
from wholestep.xla.dtypes import carried

aten = torch.ops.aten

_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class Unmade:
    """In the place of elements that are still to be made."""

    def flush(self, reason: str) -> None:
        """Make them, and let every buffer that holds some have them."""
        raise NotImplementedError

    def give(self, buffer: Buffer, place: int) -> None:
        """Let a buffer hold those of this place."""
        raise NotImplementedError


class Buffer:
    """The contents of one storage.

    Attributes:
        value: elements in row-major order, in whatever shape; before they are made, what will make them; None before
            anything was written.
        place: which of those that are made together.
        shape: of the elements.
        dtype: of its elements as PyTorch knows them; the array has the one that carries it.
    """

    __slots__ = ("__weakref__", "dtype", "place", "shape", "value")

    def __init__(self, value: jax.Array | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.value: Any = value
        self.place = -1
        self.shape = shape
        self.dtype = dtype

    @property
    def is_made(self) -> bool:
        """Whether the elements are there."""
        return self.value is not None and not isinstance(self.value, Unmade)

    @property
    def array(self) -> jax.Array:
        """The elements, now: what was recorded runs; what was never written is zero."""
        if self.value is None:
            self.value = jax.numpy.zeros(self.shape, carried(self.dtype))
        elif isinstance(self.value, Unmade):
            self.value.flush("a value is read")
        return self.value

    def take(self, other: Buffer) -> None:
        """Hold the same elements as `other`, in its shape."""
        self.value, self.shape = other.value, other.shape
        if isinstance(other.value, Unmade):
            other.value.give(self, other.place)

    def hold(self, value: jax.Array, form: tuple[tuple[int, ...], torch.dtype]) -> None:
        """Hold an array of this shape and dtype."""
        self.value, (self.shape, self.dtype) = value, form

    def reinterpret(self, dtype: torch.dtype) -> None:
        """Take the same bytes for elements of another dtype, as PyTorch counts bytes: of 64-bit types, 8."""
        if self.value is None:
            self.shape, self.dtype = (-(-math.prod(self.shape) * self.dtype.itemsize // dtype.itemsize),), dtype
            return
        array = reinterpreted(self.array, self.dtype, dtype)
        if array is None:
            data = from_jax(self.array, self.dtype).reshape(-1).view(torch.uint8)
            elements = torch.nn.functional.pad(data, (0, -len(data) % dtype.itemsize)).clone().view(dtype)
            array = to_jax(elements, "a view of another dtype")
        self.value, self.shape, self.dtype = array, array.shape, dtype


class Layout(NamedTuple):
    """How a new tensor lies in its storage.

    Attributes:
        size: of the tensor.
        stride: in elements, without gaps and overlaps.
        shape: of the buffer: the sizes from the largest stride to the smallest.
        order: the tensor's dimensions in that order; None where that is their order already.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...] | None

    @classmethod
    def of(cls, size: Sequence[int], stride: Sequence[int]) -> Layout:
        """These strides where they are dense, else those of a dense tensor."""
        size, dense = tuple(size), contiguous(size)
        order = tuple(sorted(range(len(size)), key=lambda dim: (-stride[dim], dim)))
        shape = tuple(size[dim] for dim in order)
        dense_in_order = contiguous(shape)
        steps = tuple(dense_in_order[order.index(dim)] for dim in range(len(size)))
        moved = any(n > 1 and a != b for n, a, b in zip(size, stride, dense, strict=True))
        gaps = any(n > 1 and a != b for n, a, b in zip(size, stride, steps, strict=True))
        return cls(size, steps, shape, order) if moved and not gaps else cls(size, dense, size, None)


def tensor_over(buffer: Buffer, layout: Layout) -> Tensor:
    """A new tensor, the whole of a new storage."""
    tensor = torch._C._acc.create_empty_tensor(layout.size, buffer.dtype)
    if layout.order is not None:
        _place(tensor, layout.size, layout.stride, 0)
    tensor.untyped_storage().buffer = buffer
    return tensor


def empty(size: Sequence[int], dtype: torch.dtype, stride: Sequence[int] | None = None) -> Tensor:
    """A tensor that was never written, of these strides where they are dense.

    Raises:
        LoweringError: XLA has no such dtype.
    """
    carried(dtype)
    layout = Layout.of(size, contiguous(size) if stride is None else stride)
    return tensor_over(Buffer(None, layout.shape, dtype), layout)


def buffer_of(tensor: Tensor) -> Buffer:
    """What `tensor`'s storage holds, as elements of its dtype.

    Raises:
        WholestepError: a tensor that something else than this device made.
    """
    try:
        buffer = tensor.untyped_storage().buffer
    except AttributeError:
        raise WholestepError(f"{tensor.dtype}{list(tensor.shape)} on {tensor.device} has no contents here") from None
    if buffer.dtype is not tensor.dtype:
        buffer.reinterpret(tensor.dtype)
    return buffer


def over_array(array: jax.Array, dtype: torch.dtype) -> Tensor:
    """A tensor of these elements, which nobody else may donate."""
    layout = Layout(array.shape, contiguous(array.shape), array.shape, None)
    return tensor_over(Buffer(array, array.shape, dtype), layout)


def view_of(tensor: Tensor) -> View:
    """Where `tensor`'s elements lie in its storage."""
    return View(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def as_strided(tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Tensor:
    """The view, over the same storage, of any device's kernel: it works on sizes alone."""
    sized(tensor)
    return aten.as_strided.default.redispatch(_CPU, tensor, size, stride, offset)


def share(
    tensor: Tensor, storage: torch.UntypedStorage, offset: int, size: Sequence[int], stride: Sequence[int]
) -> Tensor:
    """Make `tensor` a view of `storage`, in place."""
    return aten.set_.source_Storage_storage_offset.redispatch(_META, tensor, storage, offset, size, stride)


def _place(tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> None:
    """Set sizes and strides in place, the storage's size in bytes with them."""
    share(tensor, tensor.untyped_storage(), offset, size, stride)


def sized(tensor: Tensor) -> Tensor:
    """`tensor`, PyTorch knowing how many bytes its storage has: on demand, since saying so takes longer than making
    it."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0 and tensor.numel():
        buffer = storage.buffer
        size, stride, offset = view_of(tensor)
        share(tensor, storage, 0, (math.prod(buffer.shape),), (1,))
        share(tensor, storage, offset, size, stride)
    return tensor


def resize(tensor: Tensor, size: Sequence[int]) -> Tensor:
    """Give `tensor` these sizes in place, its storage more room where it must have it."""
    buffer, elements = buffer_of(tensor), math.prod(size)
    held, needed = math.prod(buffer.shape), tensor.storage_offset() + elements
    if needed > held:
        if buffer.value is not None:
            buffer.value = jax.numpy.pad(buffer.array.reshape(-1), (0, needed - held))
        buffer.shape = (needed,)
    sized(tensor)
    _place(tensor, size, contiguous(size), tensor.storage_offset())
    return tensor
