"""What an instruction of a compiled program costs by its shapes: FLOPs, bytes to and from memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from wholestep.plan.hlo import Array, Computation, Instruction, Module

FREE = frozenset(
    {
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "partition-id",
        "replica-id",
        "opt-barrier",
    }
)
"""Opcodes that take no time and move nothing."""

_SLICES = ("dynamic-slice", "slice", "gather")
_MOVES = frozenset({"copy", "transpose", "reshape", "concatenate", "pad", "slice", "reverse"})
_MOVES_BESIDE = frozenset({"copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start"})


def flops(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Of matrix products and convolutions, 2 for a multiplication with its addition, inside of what is called too; one
    trip of a loop. Pallas kernels count as nothing here: their text does not say what they do."""
    if instruction.opcode == "dot":
        return _dot_flops(computation, instruction)
    if instruction.opcode == "convolution":
        return _convolution_flops(computation, instruction)
    return sum(flops(module, inside, each) for inside in module.called(instruction) for each in inside.instructions)


def _dot_flops(computation: Computation, instruction: Instruction) -> int:
    left = computation.operands(instruction)[0].arrays[0]
    contracted = _integers(instruction.attribute("lhs_contracting_dims") or "{}")
    return 2 * instruction.arrays[0].elements * int(np.prod([left.dims[dim] for dim in contracted], dtype=np.int64))


def _convolution_flops(computation: Computation, instruction: Instruction) -> int:
    """Multiplications with padding or with the zeros of a dilation are none: the TPU compiler writes batched products
    as convolutions whose windows reach one element of the input each."""
    operands, labels = computation.operands(instruction), instruction.attribute("dim_labels") or ""
    left_labels, right_labels, out_labels = re.split(r"_|->", labels)
    left, right, out = operands[0].arrays[0], operands[1].arrays[0], instruction.arrays[0]
    window = _window(instruction.attribute("window") or "")
    positions = 1
    for i, size in enumerate(window["size"]):
        positions *= _products(
            inputs=left.dims[left_labels.index(str(i))],
            outputs=out.dims[out_labels.index(str(i))],
            size=size,
            stride=window["stride"][i],
            low=window["low"][i],
            input_dilation=window["lhs_dilate"][i],
            window_dilation=window["rhs_dilate"][i],
        )
    batch, features = out.dims[out_labels.index("b")], out.dims[out_labels.index("f")]
    return 2 * batch * features * right.dims[right_labels.index("i")] * positions


def _products(
    *, inputs: int, outputs: int, size: int, stride: int, low: int, input_dilation: int, window_dilation: int
) -> int:
    """Pairs of an output and a window element that meet an element of the input, along one dimension."""
    at = np.arange(outputs)[:, None] * stride + np.arange(size)[None, :] * window_dilation - low
    return int(((at >= 0) & (at < (inputs - 1) * input_dilation + 1) & (at % input_dilation == 0)).sum())


def _window(text: str) -> dict[str, list[int]]:
    """`{size=8x3 pad=7_7x1_1}` -> by field and dimension, defaults filled in."""
    fields = dict(part.split("=") for part in text.strip("{}").split())
    size = [int(n) for n in fields["size"].split("x")] if "size" in fields else []
    window = {"size": size, "low": [0] * len(size)}
    if "pad" in fields:
        window["low"] = [int(pair.split("_")[0]) for pair in fields["pad"].split("x")]
    for name in ("stride", "lhs_dilate", "rhs_dilate"):
        window[name] = [int(n) for n in fields[name].split("x")] if name in fields else [1] * len(size)
    return window


def bytes_moved(module: Module, computation: Computation, instruction: Instruction) -> dict[int, int]:
    """Memory space -> bytes read from it and written to it; one trip of a loop is counted by its own instructions.

    Of what is only sliced, the slices count; of what is updated in place, the update. A copy that goes on beside other
    work counts where it starts.
    """
    moved: dict[int, int] = {}
    if instruction.opcode in FREE or instruction.opcode == "while" or instruction.opcode.endswith("-done"):
        return moved
    for space, size in (*_read(module, computation, instruction), *_written(module, computation, instruction)):
        moved[space] = moved.get(space, 0) + size
    return moved


def _read(module: Module, computation: Computation, instruction: Instruction) -> Iterator[tuple[int, int]]:
    for i, operand in enumerate(computation.operands(instruction)):
        for array in operand.arrays:
            yield array.space, _size_read_by(module, computation, instruction, i, array)


def _size_read_by(module: Module, computation: Computation, user: Instruction, operand: int, array: Array) -> int:
    """Bytes of an array that the reader of it wants that has it as this operand."""
    inside = module.called(user)
    if inside and user.opcode != "conditional" and len(computation.operands(user)[operand].arrays) == 1:
        return _size_read(module, inside[0], inside[0].parameters[operand], array)
    if operand == 0 and user.operation in _SLICES:
        return min(sum(result.size for result in _results(computation, user)), array.size)
    if operand == 0 and user.operation == "dynamic-update-slice":
        return 0
    return array.size


def _size_read(module: Module, computation: Computation, value: Instruction, array: Array) -> int:
    """Bytes of a value that its readers in this computation want; nothing where it is only passed on."""
    total = 0
    for user in computation.users[value.name]:
        if user.opcode == "bitcast":
            total += _size_read(module, computation, user, array)
        elif user.opcode != "tuple":
            total += _size_read_by(module, computation, user, user.operands.index(value.name), array)
    return min(total, array.size)


def _written(module: Module, computation: Computation, instruction: Instruction) -> Iterator[tuple[int, int]]:
    if instruction.opcode == "send":
        return
    inside, root, arrays = computation, instruction, _results(computation, instruction)
    called = module.called(instruction)
    if called:
        inside, root = called[0], called[0].root
    roots = inside.operands(root) if root.opcode == "tuple" else (root,)
    if len(roots) != len(arrays):  # a result that is itself a tuple
        yield from ((array.space, array.size) for array in arrays)
        return
    for array, result in zip(arrays, roots, strict=True):
        yield array.space, _size_written(module, inside, result, array)


def _size_written(module: Module, computation: Computation, result: Instruction, array: Array) -> int:
    """Bytes of an array that are written to make it as this result of a computation."""
    called = module.called(result)
    if result.opcode == "bitcast":
        return _size_written(module, computation, computation.operands(result)[0], array)
    if called and called[0].root.opcode != "tuple":
        return _size_written(module, called[0], called[0].root, array)
    if result.operation == "dynamic-update-slice":
        return computation.operands(result)[1].arrays[0].size
    return 0 if result.opcode == "parameter" else array.size


def _results(computation: Computation, instruction: Instruction) -> tuple[Array, ...]:
    """What it makes. The start of something asynchronous also names its operands, and flags, which are scalars."""
    arrays = instruction.arrays
    if instruction.opcode == "copy-start":
        return arrays[:1]
    if not instruction.opcode.endswith("-start"):
        return arrays
    operands = sum(len(operand.arrays) for operand in computation.operands(instruction))
    return tuple(array for array in arrays[operands:] or arrays if array.dims)


def only_moves(module: Module, instruction: Instruction) -> bool:
    """Whether it computes nothing: a change of layout, or a move within memory."""
    if instruction.operation in ("fusion", "call", "async"):
        inside = [each for called in module.called(instruction) for each in called.instructions]
        return all(each.opcode in FREE or only_moves(module, each) for each in inside)
    return instruction.opcode in _MOVES or instruction.opcode in _MOVES_BESIDE


def _integers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]
