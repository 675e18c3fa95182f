"""PyTorch's operator database against the lowerings: value, shape and dtype of every sample, and its gradients.

All samples of an entry are one program, since compiling is what takes the time; where that fails, they run one by one,
to tell which. An entry is never silently wrong: a sample either agrees with PyTorch, or raises an error of ours.
"""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch
from support import TOLERANCE
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from wholestep.errors import WholestepError
from wholestep.graph.trace import trace
from wholestep.xla.dtypes import carried, to_program
from wholestep.xla.function import GraphFunction

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


@dataclass
class Case:
    """One sample of an entry, of one dtype, with gradients or without.

    Attributes:
        name: dtype and place among the samples of it.
        function: of `tensors` alone; every result flat.
        tensors: its inputs.
        expected: PyTorch's results for them, flat; gradients after the values.
        random: whether only shapes and dtypes can be compared.
    """

    name: str
    function: Callable[..., list[Tensor]]
    tensors: list[Tensor]
    expected: list[Tensor]
    random: bool


@dataclass
class Verdict:
    """What became of an entry.

    Attributes:
        passed: samples that agree with PyTorch.
        refused: sample -> the error of ours that it raised.
        wrong: sample -> what it gave, or the error that is not ours.
    """

    passed: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)


def cases(entry: OpInfo, part: float = 1.0) -> list[Case]:
    """The entry's samples, or a part of those of each dtype: at least one, the same in every run."""
    chosen = []
    for dtype in DTYPES:
        if not entry.supports_dtype(dtype, "cpu"):
            continue
        gradients = dtype == torch.float32 and entry.supports_autograd
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        found = list(_cases(entry, dtype, gradients))
        if part < 1 and found:
            seed = zlib.crc32(f"{entry.full_name}/{dtype}".encode())
            found = random.Random(seed).sample(found, max(1, round(part * len(found))))
        chosen += found
    return chosen


def judge(entry: OpInfo, part: float = 1.0) -> Verdict:
    """Run the entry's samples and compare."""
    verdict = Verdict()
    together = cases(entry, part)
    try:
        if not any(_differs(case, results) for case, results in zip(together, _run(together), strict=True)):
            verdict.passed = len(together)
            return verdict
    except Exception:  # whatever it was: the one by one run says of which sample
        pass
    for case in together:
        try:
            difference = _differs(case, _run([case])[0])
        except WholestepError as error:
            verdict.refused[case.name] = str(error)
        except Exception as error:
            verdict.wrong[case.name] = f"{type(error).__name__}: {error}"
        else:
            if difference:
                verdict.wrong[case.name] = difference
            else:
                verdict.passed += 1
    return verdict


def _cases(entry: OpInfo, dtype: torch.dtype, gradients: bool) -> Iterator[Case]:
    for number, sample in enumerate(entry.sample_inputs("cpu", dtype, requires_grad=gradients)):
        case = _case(entry, sample, gradients, f"{str(dtype).removeprefix('torch.')} {number}")
        if case is not None:
            yield case


def _case(entry: OpInfo, sample: SampleInput, gradients: bool, name: str) -> Case | None:
    """None where PyTorch itself refuses the sample."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[i].detach() for i in places]
    wanted = [gradients and leaves[i].requires_grad for i in places]

    def values(*given: Tensor) -> list[Tensor]:
        filled = list(leaves)
        for i, tensor in zip(places, given, strict=True):
            filled[i] = tensor
        first, args, kwargs = tree_unflatten(filled, spec)
        result = entry.op(first, *args, **kwargs)
        result = sample.output_process_fn_grad(result) if gradients else result
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]

    def with_gradients(*given: Tensor) -> list[Tensor]:
        given = tuple(
            # A copy, so that operators may write into it, as PyTorch's own tests let them.
            x.detach().clone().requires_grad_(True) if want else x.clone()
            for x, want in zip(given, wanted, strict=False)
        )
        inputs = [x for x, want in zip(given, wanted, strict=True) if want]
        with torch.enable_grad():
            outputs = values(*given)
            roots = [output for output in outputs if output.requires_grad]
            if not roots or not inputs:
                return outputs
            tangents = [torch.full_like(root, 0.5) + _ramp(root) for root in roots]
            grads = torch.autograd.grad(roots, inputs, tangents, allow_unused=True)
        return [*(output.detach() for output in outputs), *(grad for grad in grads if grad is not None)]

    def run(*given: Tensor) -> list[Tensor]:
        return with_gradients(*given) if gradients else values(*(x.clone() for x in given))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            state = torch.get_rng_state()
            expected = [x.detach() for x in run(*tensors)]
            torch.set_rng_state(state)
            again = [x.detach() for x in run(*tensors)]
            drawn = not torch.equal(state, torch.get_rng_state())
        except Exception:
            return None
    return Case(name, run, tensors, expected, drawn or len(again) != len(expected))


def _ramp(like: Tensor) -> Tensor:
    """Tangents that differ from element to element, so that a gradient in another order shows."""
    flat = torch.arange(like.numel(), dtype=torch.float32, device=like.device) / max(like.numel(), 1)
    return flat.reshape(like.shape).to(like.dtype)


def _run(together: Sequence[Case]) -> list[list[Any]]:
    """Results of each case, all from one program."""
    given = [tensor for case in together for tensor in case.tensors]

    def function(*inputs: Tensor) -> list[list[Tensor]]:
        rest = iter(inputs)
        return [case.function(*(next(rest) for _ in case.tensors)) for case in together]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = GraphFunction(trace(function, given))
        arrays = [_array(tensor) for tensor in given]
        results = iter(compiled(jax.random.key(0), *arrays))
    return [[next(results) for _ in case.expected] for case in together]


def _array(tensor: Tensor) -> jax.Array:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return jax.numpy.asarray(tensor.float().numpy(), jax.numpy.bfloat16)
    return jax.numpy.asarray(to_program("a sample", tensor.numpy(), tensor.dtype))


def _differs(case: Case, results: Sequence[jax.Array]) -> str:
    """What differs from PyTorch; empty where nothing does."""
    for place, (got, want) in enumerate(zip(results, case.expected, strict=True)):
        if (got.shape, got.dtype) != (tuple(want.shape), carried(want.dtype)):
            return f"result {place} is {got.dtype}{list(got.shape)}, PyTorch's {want.dtype}{list(want.shape)}"
        if case.random:
            continue
        inputs = [x.dtype for x in (*case.tensors, want)]
        narrow = torch.bfloat16 if any(dtype in (torch.bfloat16, torch.float16) for dtype in inputs) else torch.float32
        value, reference = _wide(np.asarray(got)), _wide(_numpy(want))
        finite = np.isfinite(reference)
        if not np.array_equal(value[~finite], reference[~finite], equal_nan=True):
            return f"result {place}: {_short(value)} is not {_short(reference)}"
        exact = not (want.dtype.is_floating_point or want.dtype.is_complex)
        error = np.linalg.norm((value - reference)[finite].ravel())
        if error > (0 if exact else TOLERANCE[narrow] * max(np.linalg.norm(reference[finite].ravel()), 1e-3)):
            return f"result {place}: {_short(value)} is not {_short(reference)}"
    return ""


def _numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.resolve_conj().resolve_neg()
    return tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _short(array: np.ndarray) -> str:
    return np.array2string(array.ravel()[:6], precision=5, threshold=6)
