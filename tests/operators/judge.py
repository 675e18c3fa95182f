"""PyTorch's operator database against the lowerings: value, shape and dtype of every sample, and its gradients.

The samples of an entry are one program, since compiling is what takes the time; where that raises, its halves are, down
to the one that does. An entry is never silently wrong: a sample either agrees with PyTorch, or raises an error of ours.

Where it does not agree, PyTorch may be as far from the truth as the program is. So both are held against what PyTorch
computes in 64 bits: the program may err by the tolerance and by twice what PyTorch errs by in the program's dtypes.
"""

from __future__ import annotations

import itertools
import random
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch
from support import TOLERANCE
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from wholestep.errors import WholestepError
from wholestep.graph.trace import trace
from wholestep.xla.dtypes import carried, to_program
from wholestep.xla.function import GraphFunction

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)

# Samples of one program.
TOGETHER = 100

# A part of the samples is to be quick: it is of those with at most so many elements, and is at most so many of a dtype.
LARGEST, MOST = 1 << 16, 4

# A result cancels to nothing if it is by this factor smaller than the greatest of a call.
CANCELLED = 1e-6

# Entries that give indices and leave open which among equals -> place of `dim` among the arguments after the input.
PICKING = {
    "argmax": 0,
    "argmin": 0,
    "argsort": 0,
    "cummax": 0,
    "cummin": 0,
    "kthvalue": 1,
    "max.reduction_with_dim": 0,
    "median": 0,
    "min.reduction_with_dim": 0,
    "mode": 0,
    "nanmedian": 0,
    "sort": 0,
    "topk": 1,
}

# Entries whose results hold whatever was in memory.
UNINITIALIZED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")

# Compiling fast, not fast programs.
COMPILER_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_llvm_disable_expensive_passes": True,
}


@dataclass
class Case:
    """One sample of an entry, of one dtype, with gradients or without.

    Attributes:
        name: dtype and place among the samples of it.
        function: of `tensors` alone; every result flat.
        tensors: its inputs.
        expected: PyTorch's results for them, flat; gradients after the values.
        in_precision: PyTorch's results with 32 or 64 bits for all that has either, of tensors and of arguments.
        values: whether they can be compared, not just shapes and dtypes.
        picked: where results are indices that leave open which among equals: what they index, and its dimension; None
            for all, flattened.
    """

    name: str
    function: Callable[..., list[Tensor]]
    tensors: list[Tensor]
    expected: list[Tensor]
    in_precision: Callable[[int], list[Tensor]]
    values: bool
    picked: tuple[Tensor, int | None] | None


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
    chosen: list[Case] = []
    for dtype in DTYPES:
        if not entry.supports_dtype(dtype, "cpu"):
            continue
        gradients = dtype == torch.float32 and entry.supports_autograd
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = list(enumerate(entry.sample_inputs("cpu", dtype, requires_grad=gradients)))
        count = len(samples)
        if part < 1:
            count = min(max(1, round(part * count)), MOST)
            random.Random(zlib.crc32(f"{entry.full_name}/{dtype}".encode())).shuffle(samples)
        found = (_case(entry, sample, gradients, f"{_short_name(dtype)} {number}") for number, sample in samples)
        known = (case for case in found if case is not None and (part == 1 or _size(case) <= LARGEST))
        chosen += itertools.islice(known, count)
    return chosen


def judge(entry: OpInfo, part: float = 1.0) -> Verdict:
    """Run the entry's samples and compare."""
    verdict = Verdict()
    found = cases(entry, part)
    for first in range(0, len(found), TOGETHER):
        _judge(found[first : first + TOGETHER], verdict)
    return verdict


def _judge(together: Sequence[Case], verdict: Verdict) -> None:
    try:
        everything = _run(together)
        differences = [_differs(case, results) for case, results in zip(together, everything, strict=True)]
    except Exception as error:
        if len(together) > 1:
            middle = len(together) // 2
            _judge(together[:middle], verdict)
            _judge(together[middle:], verdict)
        elif isinstance(error, WholestepError):
            verdict.refused[together[0].name] = str(error)
        else:
            verdict.wrong[together[0].name] = f"{type(error).__name__}: {error}"
        return
    for case, difference in zip(together, differences, strict=True):
        if difference:
            verdict.wrong[case.name] = difference
        else:
            verdict.passed += 1


def _short_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _size(case: Case) -> int:
    return sum(x.numel() for x in (*case.tensors, *case.expected))


def _case(entry: OpInfo, sample: SampleInput, gradients: bool, name: str) -> Case | None:
    """None where PyTorch itself refuses the sample, and where integers do not fit the 32 bits that programs carry."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[i].detach() for i in places]
    wanted = [gradients and leaves[i].requires_grad for i in places]

    def values(*given: Tensor, bits: int | None = None) -> list[Tensor]:
        filled = [leaf if bits is None else _in_bits(leaf, bits) for leaf in leaves]
        for i, tensor in zip(places, given, strict=True):
            filled[i] = tensor
        first, args, kwargs = tree_unflatten(filled, spec)
        result = entry.op(first, *args, **kwargs)
        result = sample.output_process_fn_grad(result) if gradients else result
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]

    def with_gradients(*given: Tensor, bits: int | None) -> list[Tensor]:
        given = tuple(
            # A copy, so that operators may write into it, as PyTorch's own tests let them.
            x.detach().clone().requires_grad_(True) if want else x.clone()
            for x, want in zip(given, wanted, strict=False)
        )
        inputs = [x for x, want in zip(given, wanted, strict=True) if want]
        with torch.enable_grad():
            outputs = values(*given, bits=bits)
            roots = [output for output in outputs if output.requires_grad]
            if not roots or not inputs:
                return outputs
            tangents = [torch.full_like(root, 0.5) + _ramp(root) for root in roots]
            grads = torch.autograd.grad(roots, inputs, tangents, allow_unused=True)
        return [*(output.detach() for output in outputs), *(grad for grad in grads if grad is not None)]

    def run(*given: Tensor, bits: int | None = None) -> list[Tensor]:
        return with_gradients(*given, bits=bits) if gradients else values(*(x.clone() for x in given), bits=bits)

    def in_precision(bits: int) -> list[Tensor]:
        return [x.detach() for x in run(*(_in_bits(x, bits) for x in tensors), bits=bits)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _Drawing() as drawing:
                expected = [x.detach() for x in run(*tensors)]
        except Exception:
            return None
    if not all(map(_fits, (*tensors, *expected))):
        return None
    picked = None
    if entry.full_name in PICKING and not sample.kwargs.get("stable"):
        given = dict(enumerate(sample.args))
        dim = given.get(PICKING[entry.full_name], sample.kwargs.get("dim"))
        flat = dim is None and entry.name in ("argmax", "argmin", "median", "nanmedian")
        picked = (tensors[0], None if flat else -1 if dim is None else dim)
    has_values = not drawing.drawn and entry.name not in UNINITIALIZED
    return Case(name, run, tensors, expected, in_precision, has_values, picked)


_BITS = {
    32: {torch.float64: torch.float32, torch.complex128: torch.complex64},
    64: {torch.bfloat16: torch.float64, torch.float32: torch.float64, torch.complex64: torch.complex128},
}


def _in_bits(leaf: Any, bits: int) -> Any:
    if isinstance(leaf, torch.dtype):
        return _BITS[bits].get(leaf, leaf)
    return leaf.to(_BITS[bits].get(leaf.dtype, leaf.dtype)) if isinstance(leaf, Tensor) else leaf


def _fits(tensor: Tensor) -> bool:
    return tensor.dtype != torch.int64 or tensor.layout != torch.strided or torch.equal(tensor, tensor.int())


class _Drawing(TorchDispatchMode):
    """While this is open, sees whether an operator draws random numbers, whoever sets the seed.

    Attributes:
        drawn: whether one has.
    """

    drawn = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return function(*args, **(kwargs or {}))
        state = torch.get_rng_state()
        result = function(*args, **(kwargs or {}))
        self.drawn = self.drawn or not torch.equal(state, torch.get_rng_state())
        return result


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
        arguments = jax.random.key(0), *(_array(tensor) for tensor in given)
        program = compiled.jitted.lower(*arguments).compile(compiler_options=COMPILER_OPTIONS)
        results = iter(program(*arguments))
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
        if not case.values:
            continue
        takes_part = {x.dtype for x in (*case.tensors, *case.expected)}
        narrow = torch.bfloat16 if takes_part & {torch.bfloat16, torch.float16} else torch.float32
        if case.picked and want.dtype == torch.int64 and not np.array_equal(got, want):
            if not _picks_alike(torch.from_numpy(np.array(got, np.int64)), want, *case.picked):
                return f"result {place}: {_short(got)} is not {_short(want)}, nor do they pick the same"
            return ""  # and gradients go to what is picked
        value, reference = _wide(np.asarray(got)), _wide(_numpy(want))
        finite = np.isfinite(reference)
        if not np.array_equal(value[~finite], reference[~finite], equal_nan=True):
            return f"result {place}: {_short(value)} is not {_short(reference)}"
        exact = not (want.dtype.is_floating_point or want.dtype.is_complex)
        tolerance = 0 if exact else TOLERANCE[narrow]
        if _error(value, reference) > tolerance * _scale(reference) and (
            exact or not _as_near_as_pytorch(case, place, value, tolerance)
        ):
            return f"result {place}: {_short(value)} is not {_short(reference)}"
    return ""


def _as_near_as_pytorch(case: Case, place: int, value: np.ndarray, tolerance: float) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            all_truths = [_wide(_numpy(x)) for x in case.in_precision(64)]
            truth, narrow = all_truths[place], _wide(_numpy(case.in_precision(32)[place]))
        except Exception:  # the operator has no such precision
            return False
    if not all(np.array_equal(np.isfinite(value), np.isfinite(x)) for x in (truth, narrow)):
        return False
    ours, theirs, allowed = _error(value, truth), _error(narrow, truth), tolerance * _scale(truth)
    largest = max(map(_norm, all_truths))
    if _norm(truth) <= CANCELLED * largest:  # what cancels to nothing is as large as rounding makes it
        return ours <= tolerance * largest
    # Where theirs is as large as the result itself, as of vectors of either sign, anything would do.
    return ours <= allowed or (theirs <= 0.1 * _scale(truth) and ours <= 2 * theirs + allowed)


def _error(value: np.ndarray, reference: np.ndarray) -> float:
    """Of what is finite in the reference."""
    finite = np.isfinite(reference)
    return float(np.linalg.norm(value[finite] - reference[finite]))


def _scale(reference: np.ndarray) -> float:
    return max(_norm(reference), 1e-3)


def _norm(x: np.ndarray) -> float:
    return float(np.linalg.norm(x[np.isfinite(x)].ravel()))


def _picks_alike(got: Tensor, want: Tensor, source: Tensor, dim: int | None) -> bool:
    """Whether both indices pick equal values, and neither picks something twice where the other does not."""
    if dim is None:
        source, got, want, dim = source.flatten(), got.flatten(), want.flatten(), 0
    elif got.dim() < source.dim():
        got, want = got.unsqueeze(dim), want.unsqueeze(dim)
    if bool((got < 0).any()) or bool((got >= max(source.numel(), 1)).any()):
        return False
    distinct = [x.sort(dim).values.diff(dim=dim).ne(0).all(dim) for x in (got, want)] if got.dim() else [got, got]
    picks = [source.gather(dim, x) for x in (got, want)]
    return torch.equal(*distinct) and torch.allclose(*picks, rtol=0, atol=0, equal_nan=True)


def _numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.resolve_conj().resolve_neg()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _short(array: Any) -> str:
    return np.array2string(np.asarray(array).ravel()[:6], precision=5, threshold=6)
