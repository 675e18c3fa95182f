"""Autograd on `tpu`: the same gradients, and the same complaints, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device.reference import assert_close, numbers, same_on_both
from torch import Tensor
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("eager_mode")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable()
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 2 + 0 * x


class AddedInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


def _hooked(x: Tensor) -> Any:
    seen: list[Tensor] = []
    y = x.exp()
    y.register_hook(lambda grad: grad * 2)
    y.retain_grad()
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    y.sum().backward()
    return x.grad, y.grad, seen


def _written_view(x: Tensor) -> Any:
    y = x * 2
    y[1:].mul_(3)
    y.t()[0] = 5
    y[0].copy_(x[1])
    y.sum().backward()
    return x.grad, y


def _double_backward(x: Tensor) -> Any:
    (grad,) = torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)
    grad.pow(2).sum().backward()
    return grad, x.grad


def _penalty(x: Tensor) -> Any:
    weight = x.detach().t().clone().requires_grad_()
    out = F.gelu(F.layer_norm(x, (6,)) @ weight).softmax(-1)
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    (grad.norm() - 1).square().backward()
    return x.grad, weight.grad


def _accumulated(x: Tensor) -> Any:
    for scale in (1, 2):
        (x * scale).sum().backward()
    before = x.grad.clone()
    x.grad.zero_()
    x.prod().backward(retain_graph=True)
    return before, x.grad


def _retained(x: Tensor) -> Any:
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


def _no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        y = x * 2
        x.add_(1)
    with torch.inference_mode():
        z = x * 3
    with torch.set_grad_enabled(False):
        w = x[0]
    return y, y.requires_grad, x, z.is_inference(), w.requires_grad, (x * y).requires_grad


def _detached(x: Tensor) -> Any:
    y = x.detach()
    y[0] = 3
    return x, y, y.requires_grad, (x + y).requires_grad, x._version, y._version


def _frozen(x: Tensor) -> Any:
    other = x.detach().clone()
    other.requires_grad_()
    x.requires_grad_(False)
    (x * other).sum().backward()
    return x.grad, other.grad


def _views_and_indices(x: Tensor) -> Any:
    rows = torch.tensor([0, 0, 2], device=x.device)
    y = x[rows].sum() + x[:, ::2].prod() + x.diagonal().sum() + x.expand(2, 4, 6).sum() + x.unfold(1, 3, 2).exp().sum()
    y = y + x.gather(1, rows[None]).sum() + x.as_strided((2, 3), (6, 2)).sum() + torch.where(x > 0, x, x * x).sum()
    y.backward()
    return x.grad


def _hessian(x: Tensor) -> Any:
    return torch.autograd.functional.hessian(lambda z: (z[:2, :2] ** 3).sum(), x.detach())


def _functional(x: Tensor) -> Any:
    value = x.detach()
    return (
        torch.func.grad(lambda z: z.sin().sum())(value),
        torch.func.vmap(lambda row: row.softmax(-1))(value),
        torch.func.jvp(lambda z: z * z, (value,), (value,)),
    )


def _clipped(x: Tensor) -> Any:
    (x * 100).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_([x], 1.0)
    torch.nn.utils.clip_grad_value_([x], 0.1)
    return norm, x.grad


GRADIENTS: dict[str, Callable[[Tensor], Any]] = {
    "hooks": _hooked,
    "a written view": _written_view,
    "twice": _double_backward,
    "a penalty of gradients": _penalty,
    "accumulated": _accumulated,
    "retained": _retained,
    "no_grad": _no_grad,
    "detached": _detached,
    "frozen": _frozen,
    "views and indices": _views_and_indices,
    "hessian": _hessian,
    "torch.func": _functional,
    "clipped": _clipped,
    "custom": lambda x: torch.autograd.grad(Doubled.apply(x).sum(), x),
    "custom in place": lambda x: torch.autograd.grad(AddedInPlace.apply(x.clone()).sum(), x),
    "a given gradient": lambda x: torch.autograd.grad(x * 2, x, torch.ones_like(x)),
    "unused": lambda x: torch.autograd.grad(x.sum(), [x, x.detach().requires_grad_()], allow_unused=True),
    "move": lambda x: torch.autograd.grad((x.cpu() * 2).to(x.device).sum(), x),
    "another dtype": lambda x: torch.autograd.grad(x.bfloat16().square().sum(), x),
    "anomaly": lambda x: torch.autograd.grad(x.exp().sum(), x),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    same_on_both(lambda device: GRADIENTS[name](numbers(4, 6, device=device).requires_grad_()))


def _changed_after_use(x: Tensor) -> Any:
    y = x.exp()
    y.add_(1)
    y.sum().backward()


def _view_changed_after_use(x: Tensor) -> Any:
    y = x * 1
    z = y * y
    y[0].zero_()
    z.sum().backward()


def _twice(x: Tensor) -> Any:
    y = (x * x).sum()
    y.backward()
    y.backward()


def _unbound(x: Tensor) -> Any:
    parts = (x * 1).unbind(0)
    parts[0].add_(1)


def _no_grad_view(x: Tensor) -> Any:
    y = x * 1
    with torch.no_grad():
        view = y[0]
    view.add_(x[0])


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "a leaf written": lambda x: x.add_(1),
    "a view of a leaf written": lambda x: x[0].add_(1),
    "a leaf assigned": lambda x: x.__setitem__(0, 1),
    "a saved result written": _changed_after_use,
    "a saved input written": _view_changed_after_use,
    "backward twice": _twice,
    "one of several views written": _unbound,
    "a view made under no_grad": _no_grad_view,
    "no scalar": lambda x: (x * 2).backward(),
    "integers": lambda x: x.detach().int().requires_grad_(),
    "no gradient": lambda x: x.detach().sum().backward(),
    "deepcopy of no leaf": lambda x: __import__("copy").deepcopy(x * 2),
    "data of another dtype": lambda x: setattr(x, "grad", torch.zeros(2, device=x.device)),
    "out": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
    "overlap": lambda x: x.detach()[:1].expand(4, 6).add_(1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_on_the_cpu_is_refused(name: str) -> None:
    same_on_both(lambda device: REFUSED[name](numbers(4, 6, device=device).requires_grad_()))


def test_version_counters() -> None:
    def run(device: str) -> Any:
        x = numbers(4, 6, device=device)
        view, detached = x[1], x.detach()
        versions = []
        for write in (
            x.zero_,
            view.zero_,
            lambda: detached.add_(1),
            lambda: torch.add(x, 1, out=x),
            lambda: x.copy_(x),
        ):
            write()
            versions.append((x._version, view._version, detached._version))
        return versions

    same_on_both(run)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_draws_the_same_mask_again(use_reentrant: bool) -> None:
    x = numbers(8, 8, device="tpu").requires_grad_()
    weight = numbers(8, 8, device="tpu").requires_grad_()

    def block(x: Tensor) -> Tensor:
        return F.dropout(torch.tanh(x @ weight), 0.5)

    gradients = []
    for run in (block, lambda x: checkpoint(block, x, use_reentrant=use_reentrant)):
        torch.manual_seed(3)
        out = run(x)
        after = torch.rand(4, device="tpu")
        (out * out).sum().backward()
        gradients.append([out.detach(), after, x.grad, weight.grad, torch.rand(4, device="tpu")])
        x.grad = weight.grad = None
    for one, other in zip(*gradients, strict=True):
        assert_close(one, other)
    assert 10 < (gradients[0][0] == 0).sum() < 54


@pytest.mark.usefixtures("eager_mode")
def test_products_with_complex_numbers() -> None:
    def run(device: str) -> Any:
        pairs = numbers(4, 2, device=device).requires_grad_()
        z = torch.view_as_complex(pairs * 1.5).mul_(1j) * (2 - 1j)
        return z, torch.autograd.grad(z.abs().sum(), pairs)

    same_on_both(run)


@pytest.mark.usefixtures("eager_mode")
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss])
def test_means_over_nothing(loss: Any) -> None:
    def run(device: str) -> Any:
        x = torch.empty(0, 3, device=device, requires_grad=True)
        return torch.autograd.grad(loss(x, torch.zeros(0, 3, device=device)), x)

    same_on_both(run)
