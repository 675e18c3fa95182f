"""`scaled_dot_product_attention` on the device: one operator where it can be, else PyTorch's composition of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device.reference import assert_close, numbers, same_on_both
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def _inputs(device: str, heads: int = 4, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = [(2, 4, 5, 8), (2, heads, 7, 8), (2, heads, 7, 8)]
    return [(numbers(*shape) * (i + 1)).sin().to(dtype).to(device).requires_grad_() for i, shape in enumerate(shapes)]


def _tangents(out: Tensor) -> Tensor:
    return numbers(*out.shape).cos().to(out.dtype).to(out.device)


def _mask(device: str) -> Tensor:
    mask = numbers(5, 7) > 0
    mask[2] = False
    return mask.to(device)


def math(*given: Tensor) -> Tensor:
    """Not by what PyTorch's transformations do not know on the CPU."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*given)


# What is computed by one operator.
FUSED: dict[str, Callable[[str], dict[str, Any]]] = {
    "plain": lambda device: {},
    "causal": lambda device: {"is_causal": True},
    "mask": lambda device: {"attn_mask": _mask(device)},
    "mask of a row": lambda device: {"attn_mask": _mask(device)[:1, None, None]},
    "causal and masked": lambda device: {"attn_mask": _mask(device), "is_causal": True},
    "bias": lambda device: {"attn_mask": numbers(2, 1, 5, 7, device=device) / 8},
    "scale": lambda device: {"scale": 0.5},
    "scale of zero": lambda device: {"scale": 0.0},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUSED)
def test_it_is_one_operator_each_way(name: str, dtype: torch.dtype) -> None:
    def run(device: str) -> list[Tensor]:
        given, options = _inputs(device, dtype=dtype), FUSED[name](device)
        if name == "bias":
            options["attn_mask"] = options["attn_mask"].to(dtype)
        torch.tpu.counters().reset()
        out = F.scaled_dot_product_attention(*given, **options)
        grads = torch.autograd.grad(out, given, _tangents(out))
        if device == "tpu":
            assert torch.tpu.counters().operators == 2
        assert out.stride() == F.scaled_dot_product_attention(*_inputs("cpu", dtype=dtype)).stride()
        return [out, *grads]

    same_on_both(run)


COMPOSED: dict[str, Callable[[str], Any]] = {
    "grouped queries": lambda device: F.scaled_dot_product_attention(*_inputs(device, 2), enable_gqa=True),
    "three dimensions": lambda device: F.scaled_dot_product_attention(*(x[0] for x in _inputs(device))),
    "narrower values": lambda device: F.scaled_dot_product_attention(
        *(x[..., :n] for x, n in zip(_inputs(device), (8, 8, 3), strict=True))
    ),
    "gradient of the bias": lambda device: torch.autograd.grad(
        F.scaled_dot_product_attention(*_inputs(device), bias := (numbers(5, 7, device=device) / 8).requires_grad_()),
        bias,
        _tangents(torch.empty(2, 4, 5, 8, device=device)),
    ),
    "function's gradient": lambda device: torch.func.grad(lambda *given: math(*given).square().sum())(
        *(x.detach() for x in _inputs(device))
    ),
    "tangents": lambda device: torch.func.jvp(F.scaled_dot_product_attention, (x := tuple(_inputs(device))), x),
    "over a batch": lambda device: torch.vmap(math)(*(x[None] for x in _inputs(device))),
    "in inference mode": lambda device: torch.inference_mode()(F.scaled_dot_product_attention)(*_inputs(device)),
    "a mask of another size": lambda device: F.scaled_dot_product_attention(
        *_inputs(device), attn_mask=torch.ones(5, 6, dtype=torch.bool, device=device)
    ),
    "keys of other sizes": lambda device: F.scaled_dot_product_attention(
        *(x[..., :n] for x, n in zip(_inputs(device), (8, 3, 8), strict=True))
    ),
    "no rows": lambda device: F.scaled_dot_product_attention(*(x[:, :, :0] for x in _inputs(device))),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_anything_else_is_pytorchs(name: str) -> None:
    same_on_both(COMPOSED[name])


def test_dropout_drops_as_many_as_it_says() -> None:
    torch.manual_seed(0)
    one = torch.ones(1, 8, 64, 64, device="tpu")
    out = F.scaled_dot_product_attention(one, one, one, dropout_p=0.25)
    assert 0 < (out - 1).abs().max() < 0.5 and abs(out.mean().item() - 1) < 0.01


def test_the_math_backend_is_differentiated_twice() -> None:
    def second(device: str) -> tuple[Tensor, ...]:
        given = _inputs(device)
        (first,) = torch.autograd.grad(math(*given).square().sum(), given[0], create_graph=True)
        return torch.autograd.grad(first.square().sum(), given)

    same_on_both(second)
    given = _inputs("tpu")
    out = F.scaled_dot_product_attention(*given).square().sum()
    (first,) = torch.autograd.grad(out, given[0], create_graph=True)
    with pytest.raises(RuntimeError, match="flash_attention_for_cpu_backward"):
        first.sum().backward()


def test_compiled_it_is_the_same() -> None:
    def run(device: str) -> list[Tensor]:
        given = _inputs(device)
        out = torch.compile(F.scaled_dot_product_attention, backend="wholestep")(*given, is_causal=True)
        return [out, *torch.autograd.grad(out, given, _tangents(out))]

    given = _inputs("cpu")
    out = F.scaled_dot_product_attention(*given, is_causal=True)
    wanted = [out, *torch.autograd.grad(out, given, _tangents(out))]
    for device in ("cpu", "tpu"):
        for one, other in zip(run(device), wanted, strict=True):
            assert_close(one, other)
