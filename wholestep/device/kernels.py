"""The operators that do not compute: they make tensors, view them, move bytes, or read a value (see `register.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wholestep.device.buffer import (
    Buffer,
    Layout,
    as_strided,
    buffer_of,
    empty,
    resize,
    share,
    sized,
    tensor_over,
    view_of,
)
from wholestep.device.dispatch import call, resolved
from wholestep.device.eager import EAGER
from wholestep.device.strides import contiguous
from wholestep.device.transfer import from_jax, to_jax
from wholestep.errors import WholestepError

aten = torch.ops.aten

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def empty_memory_format(
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """`torch.empty`."""
    _check(layout, device)
    strides = None
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return empty(size, dtype or torch.get_default_dtype(), strides)


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """`torch.empty_strided`."""
    _check(layout, device)
    return empty(size, dtype or torch.get_default_dtype(), stride)


def _check(layout: torch.layout | None, device: torch.device | None) -> None:
    if layout not in (None, torch.strided):
        raise WholestepError(f"tpu tensors are dense; {layout} is not supported")
    if device is not None and (device.index or 0) != 0:
        raise WholestepError(
            f"{device}: operators run on tpu:0; several devices are used by one program, over a DeviceMesh, in a "
            "captured step (docs/device.md)"
        )


def view(tensor: Tensor, *args: Any) -> Tensor:
    """`Tensor.view` to other sizes: PyTorch's kernel works on sizes alone."""
    return aten.view.default.redispatch(_CPU, tensor, *args)


def as_strided_(tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Tensor:
    """`Tensor.as_strided_`, and what makes of it `t_`, `squeeze_` and the like."""
    storage = sized(tensor).untyped_storage()
    return share(tensor, storage, tensor.storage_offset() if offset is None else offset, size, stride)


def reshape_alias(tensor: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """A view of these sizes and strides."""
    return as_strided(tensor, size, stride, tensor.storage_offset())


def unfold(tensor: Tensor, dim: int, size: int, step: int) -> Tensor:
    """`Tensor.unfold`."""
    dim = dim % max(tensor.dim(), 1)
    sizes, strides = list(tensor.shape) or [1], list(tensor.stride()) or [1]
    if size > sizes[dim] or step < 1:
        raise RuntimeError(f"unfold: windows of {size}, {step} apart, over a dimension of {sizes[dim]}")
    windows, apart = (sizes[dim] - size) // step + 1, strides[dim]
    if not tensor.dim():
        return as_strided(tensor, (size,), (1,), tensor.storage_offset())
    sizes[dim], strides[dim] = windows, apart * step
    return as_strided(tensor, [*sizes, size], [*strides, apart], tensor.storage_offset())


def view_as_real(tensor: Tensor) -> Tensor:
    """`torch.view_as_real`, which works on sizes alone too."""
    return aten.view_as_real.default.redispatch(_CPU, sized(tensor))


def view_as_complex(tensor: Tensor) -> Tensor:
    """`torch.view_as_complex`."""
    return aten.view_as_complex.default.redispatch(_CPU, sized(tensor))


def is_set_to(tensor: Tensor, other: Tensor) -> bool:
    """`Tensor.is_set_to`: the same elements of the same storage."""
    same_storage = tensor.untyped_storage()._cdata == other.untyped_storage()._cdata
    return same_storage and view_of(tensor) == view_of(other)


def set_storage(
    tensor: Tensor, storage: torch.UntypedStorage, offset: int = 0, size: Sequence[int] = (), stride: Sequence[int] = ()
) -> Tensor:
    """`Tensor.set_` to a storage, these sizes and strides."""
    return share(tensor, storage, offset, size, stride or contiguous(size))


def set_whole_storage(tensor: Tensor, storage: torch.UntypedStorage) -> Tensor:
    """`Tensor.set_` to all of a storage."""
    return share(tensor, storage, 0, (storage.nbytes() // tensor.dtype.itemsize,), (1,))


def set_tensor(tensor: Tensor, source: Tensor) -> Tensor:
    """`Tensor.set_` to what another tensor is."""
    return share(tensor, source.untyped_storage(), source.storage_offset(), source.shape, source.stride())


def set_nothing(tensor: Tensor) -> Tensor:
    """`Tensor.set_` to nothing."""
    return set_tensor(tensor, empty((0,), tensor.dtype))


def resize_(tensor: Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None) -> Tensor:
    """`Tensor.resize_`.

    Raises:
        WholestepError: to a memory format other than the dense one.
    """
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        raise WholestepError(f"resize_ of a tpu tensor to {memory_format} is not supported")
    return resize(tensor, size)


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """`target.copy_(source)`, of which one at least is on the device."""
    if target.is_conj():
        return copy_from(source.conj(), target.conj(), non_blocking).conj()
    if target.is_neg():
        return copy_from(source._neg_view(), target._neg_view(), non_blocking)._neg_view()
    if target.device.type == "tpu":
        source = resolved(source) if source.device.type == "tpu" else upload(source)
        if _replaces(source, target):
            buffer_of(target).take(buffer_of(source))
            return target
        return call(aten.copy_.default, target, source)
    return target.copy_(download(source))


def copy_from_and_resize(source: Tensor, target: Tensor) -> Tensor:
    """The same, with the sizes of `source`."""
    target.resize_(source.shape)
    return copy_from(source, target)


def _replaces(source: Tensor, target: Tensor) -> bool:
    """Whether the two are alike and the whole of their storages, so that they may share one array."""
    return (
        source.dtype == target.dtype
        and source.shape == target.shape
        and source.is_contiguous()
        and target.is_contiguous()
        and math.prod(buffer_of(source).shape) == source.numel()
        and math.prod(buffer_of(target).shape) == target.numel()
        and buffer_of(source).value is not None
        and not EAGER.captures  # there, each buffer has values of its own
    )


def upload(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy on the device, of this dtype where there is one.

    Raises:
        ValueError: an integer does not fit the 32 bits that programs carry.
    """
    if EAGER.recording is not None:
        EAGER.recording.moves(tensor)
    copy = tensor.detach().to(dtype or tensor.dtype).resolve_conj().resolve_neg().clone()
    layout = Layout.of(copy.shape, copy.stride())
    ordered = copy if layout.order is None else copy.permute(layout.order)
    return tensor_over(Buffer(to_jax(ordered, "a tensor moved to tpu"), layout.shape, copy.dtype), layout)


def download(tensor: Tensor) -> Tensor:
    """A copy on the CPU; waits for it."""
    if EAGER.captures:
        EAGER.flush("a value is read")
    tensor = resolved(tensor)
    buffer, view = buffer_of(tensor), view_of(tensor)
    if view.offset or buffer.shape != view.size or not tensor.is_contiguous():
        # Views are cut out on the host: as programs they would be one for each view.
        flat = from_jax(buffer.array, buffer.dtype).reshape(-1)
        return flat.as_strided(*view).clone(memory_format=torch.preserve_format)
    return from_jax(buffer.array, buffer.dtype).clone()


def local_scalar(tensor: Tensor) -> Any:
    """`Tensor.item()`."""
    return download(tensor).item()


def clone(tensor: Tensor, memory_format: torch.memory_format | None = None) -> Tensor:
    """`Tensor.clone`: of a whole storage, the array itself."""
    tensor = resolved(tensor)
    if EAGER.captures:
        return call(aten.clone.default, tensor, memory_format=memory_format)
    same = memory_format in (None, torch.preserve_format) or tensor.is_contiguous(memory_format=memory_format)
    buffer = buffer_of(tensor)
    whole = tensor.is_contiguous() and math.prod(buffer.shape) == tensor.numel() and buffer.value is not None
    if same and whole:
        result = empty(tensor.shape, tensor.dtype)
        buffer_of(result).take(buffer)
        return result
    return call(aten.clone.default, tensor, memory_format=memory_format)


def to_copy(tensor: Tensor, **options: Any) -> Tensor:
    """`Tensor.to`, which makes a tensor: on the device, of another dtype, or between devices."""
    device = options.get("device")
    if device is not None and device.type == "tpu":
        _check(options.get("layout"), device)
    if tensor.device.type == "tpu" and (device is None or device.type == "tpu"):
        options.update(device=None, non_blocking=False, pin_memory=None)
        given = {name: value for name, value in options.items() if value not in (None, False)}
        return call(aten._to_copy.default, resolved(tensor), **given)
    dtype = options.get("dtype") or tensor.dtype
    if tensor.device.type == "tpu":
        return download(tensor).to(dtype=dtype, device=device)
    return upload(tensor, dtype)


def index_put_impl_(
    tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    """What PyTorch makes of `Tensor.index_put_`."""
    return call(aten.index_put_.default, tensor, indices, values, accumulate)


def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The forms of it that say what they write."""
    if mean is None or var is None:
        return call(aten._native_batch_norm_legit.no_stats, x, weight, bias, training, momentum, eps)
    if not training:
        return call(aten._native_batch_norm_legit_no_training.default, x, weight, bias, mean, var, momentum, eps)
    return call(aten._native_batch_norm_legit.default, x, weight, bias, mean, var, training, momentum, eps)


def kaiser_window(length: int, periodic: bool = True, beta: float = 12.0, **options: Any) -> Tensor:
    """`torch.kaiser_window`, of which PyTorch has a kernel for its own devices alone: made on the CPU."""
    return torch.kaiser_window(length, periodic, beta, **{**options, "device": "cpu"}).to("tpu")
