"""Every kernel against the plain path that it replaces, in interpret mode: values and every gradient."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels.cases import CALLS, Call, build, kernel
from support import TOLERANCE, relative_error
from torch import Tensor

from wholestep.kernels import KERNELS


def test_every_kernel_has_calls() -> None:
    assert set(CALLS) == {kernel.name for kernel in KERNELS}


def run(module: torch.nn.Module, arguments: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    results = module(*arguments)
    outputs = [results] if isinstance(results, Tensor) else list(results)
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(output.shape, generator=generator).to(output.dtype) for output in outputs]
    return outputs, list(torch.autograd.grad(outputs, [x for x in arguments if x.requires_grad], weights))


def assert_close(got: Tensor, wanted: Tensor, dtype: torch.dtype, what: str) -> None:
    assert got.dtype == wanted.dtype, what
    assert got.shape == wanted.shape, what
    got, wanted = got.detach().float(), wanted.detach().float()
    assert got.isfinite().all(), what
    error = relative_error(got.numpy(), wanted.numpy())
    assert error < TOLERANCE[dtype], f"{what} is off by {error:.1e}"


@pytest.mark.parametrize(("name", "dtype"), list(itertools.product(CALLS, (torch.float32, torch.bfloat16))), ids=str)
def test_values_and_gradients_are_the_plain_paths(name: str, dtype: torch.dtype) -> None:
    row = kernel(name)

    @settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(CALLS[name]())
    def check(call: Call) -> None:
        # The plain path computes in fp32 from the same rounded numbers: it is the truth that bf16 is measured by.
        arguments = call.arguments(dtype)
        exact = [x.detach().float().requires_grad_() if x.is_floating_point() else x for x in arguments]
        outputs, gradients = run(build(row.node, call), arguments)
        wanted_outputs, wanted_gradients = run(build(row.replaces, call), exact)
        plain_outputs, _ = run(build(row.replaces, call), call.arguments(dtype))
        for i, (got, wanted, plain) in enumerate(zip(outputs, wanted_outputs, plain_outputs, strict=True)):
            assert_close(got, wanted.to(plain.dtype), dtype, f"output {i}")
        inputs = [(n, x) for n, x in zip(call.tensors, arguments, strict=True) if x.requires_grad]
        for (argument, x), got, wanted in zip(inputs, gradients, wanted_gradients, strict=True):
            assert_close(got, wanted.to(x.dtype), dtype, f"gradient of {argument}")

    check()


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_wrong_without_a_gradient(name: str) -> None:
    @settings(max_examples=1, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(CALLS[name](), st.just(torch.float32))
    def check(call: Call, dtype: torch.dtype) -> None:
        module, arguments = build(kernel(name).node, call), call.arguments(dtype)
        with torch.no_grad():
            inference = module(*arguments)
        training = module(*arguments)
        for one, other in zip([inference] if isinstance(inference, Tensor) else inference,
                              [training] if isinstance(training, Tensor) else training, strict=True):  # fmt: skip
            torch.testing.assert_close(one, other.detach())

    check()
