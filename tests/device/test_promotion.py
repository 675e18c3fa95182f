"""What dtype a result has, by tensors, tensors without dimensions, and Python numbers: as on the CPU."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from device.reference import numbers, same_on_both
from torch import Tensor

pytestmark = pytest.mark.usefixtures("eager_mode")

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64]
NUMBERS: list[Any] = [True, 2, -1.5, 1 + 2j]

OPERATORS: dict[str, Callable[[Any, Any], Tensor]] = {
    "add": operator.add,
    "div": operator.truediv,
    "where": lambda x, y: torch.where(torch.ones(2, dtype=torch.bool, device=x.device), x, y),
}


def attempt(function: Callable[[], Any]) -> Any:
    """What it gives, or that it raises."""
    try:
        return function()
    except (RuntimeError, TypeError, ValueError):
        return "raises"


def tensor(dtype: torch.dtype, device: str) -> Tensor:
    return torch.tensor([1, 3]).to(dtype).to(device)


@pytest.mark.parametrize("name", OPERATORS)
def test_two_tensors(name: str) -> None:
    def run(device: str) -> Any:
        results = []
        for one, other in itertools.combinations_with_replacement(DTYPES, 2):
            x, y = tensor(one, device), tensor(other, device)
            results += [attempt(lambda: OPERATORS[name](x, each)) for each in (y, y[1])]  # noqa: B023
        return results

    same_on_both(run)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_tensor_and_a_number(name: str) -> None:
    def run(device: str) -> Any:
        results = []
        for dtype, number in itertools.product(DTYPES, NUMBERS):
            x = tensor(dtype, device)
            calls = [lambda: OPERATORS[name](x, number), lambda: OPERATORS[name](x[1], number)]  # noqa: B023
            if name in ("add", "div"):
                calls.append(lambda: OPERATORS[name](number, x))  # noqa: B023
            results += [attempt(call) for call in calls]
        return results

    same_on_both(run)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bfloat16, torch.float32])
def test_other_operators(dtype: torch.dtype) -> None:
    def run(device: str) -> Any:
        x = tensor(dtype, device)
        half = torch.tensor([0.5, 2.0], dtype=torch.bfloat16, device=device)
        zero = torch.tensor(2.5, dtype=torch.float64)  # on the CPU
        calls: list[Callable[[], Any]] = [
            lambda: x + zero,
            lambda: zero * x,
            lambda: x.pow(2),
            lambda: x**-1.0,
            lambda: 2**x,
            lambda: 2.0**x,
            lambda: x // 2,
            lambda: x % 2.5,
            lambda: x - 1,
            lambda: 1 - x,
            lambda: x.clamp(0.5, 2),
            lambda: x.add(1, alpha=2),
            lambda: x.add(half, alpha=3),
            lambda: x.sub(1.5),
            lambda: x.mean(),
            lambda: x.sum(),
            lambda: x.sum(dtype=torch.float32),
            lambda: x.cumsum(0),
            lambda: x.exp(),
            lambda: torch.maximum(x, half),
            lambda: torch.cat([x, half]),
            lambda: x.add_(1.5),
            lambda: x.mul_(half),
            lambda: x.div_(2),
            lambda: x.copy_(half),
            lambda: x.fill_(2.9),
            lambda: x.masked_fill(x > 1, 1.5),
            lambda: x.lerp(x, 0.5),
            lambda: x.addcmul(x, x, value=0.5),
            lambda: torch.addcdiv(x, x, x, value=2),
            lambda: torch.where(x > 1, x, 0.5),
            lambda: torch.where(x > 1, 1, 0.5),
            lambda: torch.where(x > 1, 1, 2),
            lambda: torch.full_like(x, 2.5),
            lambda: torch.full((2,), 3, device=device),
            lambda: torch.full((2,), True, device=device),
            lambda: torch.arange(3, device=device),
            lambda: torch.arange(0, 1, 0.25, device=device),
            lambda: torch.linspace(0, 1, 3, device=device),
            lambda: x < 1.5,
            *([] if dtype.is_floating_point else [lambda: x & 1, lambda: x << 1, lambda: x >> x]),
            lambda: torch.floor_divide(x, 1.5),
            lambda: torch.fmod(x, 2),
            lambda: torch.true_divide(x, 2),
            lambda: torch.atan2(x, half),
            lambda: torch.heaviside(x, x),
            lambda: torch.logical_and(x, half),
            lambda: x.abs().neg(),
            lambda: x.float().to(torch.int8) + x,
            lambda: x.new_tensor(3) * 1.5,
            lambda: torch.result_type(x, 1.5),
            lambda: torch.prod(x),
            lambda: x.any(),
            lambda: x.argmax(),
            lambda: x @ x,
            lambda: torch.threshold(x, 1, 20),
            lambda: torch.nn.functional.leaky_relu(x, 0.1),
            lambda: torch.nn.functional.elu(x),
            lambda: x.add(x, alpha=0.5),
            lambda: x * zero.cpu().float(),
            lambda: torch.nn.functional.softmax(x, 0, dtype=torch.float32),
        ]
        return [attempt(call) for call in calls]

    same_on_both(run)


def test_numbers_are_inputs_of_a_program() -> None:
    x = numbers(3, device="tpu")
    counters = torch.tpu.counters()
    (x + 0.5).cpu()
    counters.reset()
    for number in (0.25, 1.75, -3.0):
        (x + number).cpu()
    assert counters.compiles == 0
    # Precise as a float64 that PyTorch rounds once.
    assert (x.bfloat16() * 1.001).tolist() == (x.cpu().bfloat16() * 1.001).tolist()
    assert (x * 1e-40).tolist() in ([0, 0, 0], (x.cpu() * 1e-40).tolist())
    assert (torch.tensor([7], device="tpu") * 3).tolist() == [21]
    ones = torch.ones(1, device="tpu")
    assert [torch.signbit(ones * number).item() for number in (0.0, -0.0, 0.0)] == [False, True, False]


def test_default_dtype() -> None:
    try:
        torch.set_default_dtype(torch.bfloat16)
        for device in ("cpu", "tpu"):
            assert torch.ones(2, device=device).dtype == torch.bfloat16
            assert (torch.ones(2, dtype=torch.int32, device=device) * 0.5).dtype == torch.bfloat16
            assert (torch.ones(2, dtype=torch.int64, device=device) / 3).dtype == torch.bfloat16
    finally:
        torch.set_default_dtype(torch.float32)
    assert (torch.ones(2, dtype=torch.int32, device="tpu") * 0.5).dtype == torch.float32


HALF: dict[str, Callable[[Tensor], Tensor]] = {
    "times what overflows": lambda x: x * 70000,
    "divided by what overflows": lambda x: x / 70000,
    "times what vanishes": lambda x: x * 1e-8,
    "overflows divided": lambda x: 1e5 / (x.abs() + 500),
    "power": lambda x: x.abs() ** 0.3,
    "in place": lambda x: x.clone().mul_(3e-8),
    "tensor without dimensions": lambda x: x * torch.tensor(1e-8, device=x.device),
    "of a tensor without dimensions": lambda x: x[1] * 2.3,
    "compared": lambda x: x < 70000,
}


@pytest.mark.parametrize("name", HALF)
def test_numbers_that_half_precision_does_not_hold(name: str) -> None:
    same_on_both(lambda device: HALF[name](torch.tensor([1e-3, 0.5, 0.33, -0.7]).half().to(device)))


def beside_numbers(x: Tensor, y: Tensor, z: Tensor) -> dict[str, Tensor]:
    """Of 16-bit floats and numbers that 16 bits do not hold. PyTorch takes some as they are, and rounds some."""
    results = {}
    for number in (0.3, 3, -1000.1):
        zero_d = torch.tensor(number, device=x.device)
        rounded = torch.full_like(x, number)
        results |= {
            f"x * {number}": x * number,
            f"x * tensor({number})": x * zero_d,
            f"tensor({number}) * x": zero_d * x,
            f"x.mul_({number})": x.clone().mul_(number),
            f"x + {number}": x + number,
            f"{number} - x": number - x,
            f"x + tensor({number})": x + zero_d,
            f"x + {number} * y": torch.add(x, y, alpha=number),
            f"x - {number} * y": torch.sub(x, y, alpha=number),
            f"x.add_(y, {number})": x.clone().add_(y, alpha=number),
            f"{number} * x - y": torch.rsub(y, x, alpha=number),
            f"addcmul {number}": torch.addcmul(x, y, z, value=number),
            f"lerp {number}": torch.lerp(x, y, float(number)),
            f"x % {number}": x % number,
            f"fmod {number}": torch.fmod(x, number),
            f"== {number}": rounded == number,
            f">= {number}": rounded >= number,
            f"foreach_mul {number}": torch._foreach_mul([x], number)[0],
            f"foreach_add {number}": torch._foreach_add([x], number)[0],
            f"foreach_add {number} * y": torch._foreach_add([x], [y], alpha=number)[0],
            f"foreach_addcmul {number}": torch._foreach_addcmul([x], [y], [z], value=number)[0],
            f"foreach_lerp {number}": torch._foreach_lerp([x], [y], float(number))[0],
        }
    return results | {"cumsum": x[:50].cumsum(0), "cumprod": x[:50].cumprod(0)}


@pytest.mark.parametrize("mode", ["immediate", "compile"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_that_16_bits_do_not_hold(dtype: torch.dtype, mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [(torch.rand(512, generator=generator) * 4 + 0.1).to(dtype) for _ in range(3)]
    wanted = beside_numbers(*inputs)
    if mode == "immediate":
        results = beside_numbers(*(x.to("tpu") for x in inputs))
    else:
        results = torch.compile(beside_numbers, backend="wholestep")(*inputs)
    for name, result in results.items():
        assert result.dtype == wanted[name].dtype
        assert torch.equal(result.cpu(), wanted[name]), name


FOR_FLOATS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: torch.softmax(x, 0),
    "gelu": torch.nn.functional.gelu,
    "std": torch.std,
    "cross entropy": lambda x: torch.nn.functional.cross_entropy(x[None], x[:1]),
    "bernoulli": torch.bernoulli,
    "floor": torch.floor,
    "division": lambda x: x // (x - 1),
    "embedding": lambda x: torch.nn.functional.embedding(x, x[:, None]),
}


@pytest.mark.parametrize("name", FOR_FLOATS)
@pytest.mark.parametrize("many", [1, 30_000], ids=["small", "large"])
def test_integers_where_the_cpu_takes_none(name: str, many: int) -> None:
    state = torch.get_rng_state()

    def run(device: str) -> Any:
        x = torch.tensor([0, 1, 2] * many, device=device)
        if name == "division":
            x = x + 2
        return attempt(lambda: FOR_FLOATS[name](x))

    same_on_both(run)
    if name != "bernoulli":
        assert torch.equal(torch.get_rng_state(), state)


def test_integers_beyond_32_bits() -> None:
    def run(device: str) -> Any:
        x = torch.tensor([-3, 0, 5], device=device)
        return [(x < n, x >= n, x == n, x != n, x.clamp(max=abs(n)), x.clamp(-abs(n), 2)) for n in (2**40, -(2**40))]

    same_on_both(run)
    x = torch.tensor([-3, 0, 5], device="tpu")
    for call in (lambda: x + 2**40, lambda: x.masked_fill(x > 0, 2**63 - 1), lambda: x.clamp(min=2**40)):
        with pytest.raises(OverflowError, match="32 bits"):
            call()


def test_windows() -> None:
    def run(device: str) -> Any:
        kinds = (torch.hann_window, torch.hamming_window, torch.blackman_window, torch.kaiser_window)
        return [kind(7, periodic, device=device) for kind in kinds for periodic in (True, False)]

    same_on_both(run)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("number", [300, 70_000, -2])
def test_numbers_that_a_narrow_tensor_cannot_hold(dtype: torch.dtype, number: int) -> None:
    def run(device: str) -> Any:
        results = []
        alone = torch.tensor(100).to(dtype).to(device)
        # Known to be wrong: a 0-d tensor of fp16 and a number beyond it.
        wrong = dtype == torch.float16 and number > 65_504
        for x in (torch.tensor([100, 3, 7]).to(dtype).to(device), *([] if wrong else [alone])):
            whole = torch.tensor(number, device=device)
            results += [x / number, number / x, x / whole, x * whole, whole / x]
            results += [x + number, x * number, x > number] if dtype.is_floating_point else [torch.xlogy(x, number)]
            results += [torch.copysign(x, number)]
        return [torch.nan_to_num(x) if x.is_floating_point() else x for x in results]

    same_on_both(run)


def test_fills_of_narrow_integers() -> None:
    def run(device: str) -> Any:
        x = torch.tensor([1, 2, 3], dtype=torch.uint8, device=device)
        first = torch.tensor([0], device=device)
        return [x.masked_fill(x > 1, -1), x.index_fill(0, first, -1), torch.full_like(x, -1), torch.where(x > 1, x, -1)]

    same_on_both(run)


def test_writes_of_another_kind() -> None:
    def run(device: str) -> Any:
        def tensors() -> list[Tensor]:
            return [torch.ones(2, dtype=dtype, device=device) for dtype in (torch.int8, torch.float16, torch.complex64)]

        others: list[Any] = [2, 1.5, torch.tensor(3, device=device), torch.tensor(1.5, device=device), tensors()[2]]
        writes = [Tensor.mul_, Tensor.add_, Tensor.sub_]
        return [
            attempt(lambda: write(tensors()[i], other))  # noqa: B023
            for write in writes
            for other in others
            for i in range(3)
        ]

    same_on_both(run)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32], ids=str)
def test_powers_of_integers(dtype: torch.dtype) -> None:
    def run(device: str) -> Any:
        x, y = (torch.tensor(each, device=device).to(dtype) for each in ([3, 7, 2, 0, 1, 5], [100, 65, 0, 64, 3, 31]))
        return [x**y, 3**y, x**100, torch.pow(x[:1], y)]

    same_on_both(run)


def test_powers_of_two_in_16_bits_are_exact() -> None:
    x = torch.arange(-5.0, 6.0)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(torch.exp2(x.to(dtype).to("tpu")).cpu().float(), torch.exp2(x))
        assert torch.equal(torch.log2(torch.exp2(x).to(dtype).to("tpu")).cpu().float(), x)
