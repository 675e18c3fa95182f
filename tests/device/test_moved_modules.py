"""A module that is moved keeps its Parameters: other layers and optimizers hold them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device.reference import assert_close, numbers, same_on_both
from torch import Tensor, nn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        with torch.no_grad():
            self.embedding.weight.copy_(numbers(7, 4) / 4)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.embedding(tokens)).flatten(0, -2), tokens.flatten())


@pytest.mark.parametrize("optimizer_first", [True, False])
def test_tied_weights_and_optimizers(optimizer_first: bool) -> None:
    def run(device: str) -> Any:
        module = Tied()
        tied = module.embedding.weight
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9) if optimizer_first else None
        module.to(device)
        assert module.embedding.weight is module.head.weight is tied and isinstance(tied, nn.Parameter)
        optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        tokens = (numbers(2, 3).abs() * 2).long().to(device)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            losses.append(module(tokens))
            losses[-1].backward()
            optimizer.step()
        return losses, list(module.parameters())

    same_on_both(run)


def test_gradients_move_too_and_back() -> None:
    module = Tied()
    module(torch.tensor([1, 2])).backward()
    weight, wanted = module.embedding.weight, module.embedding.weight.grad.clone()
    module.to("tpu")
    assert weight.grad.device.type == "tpu" and weight.is_leaf
    module(torch.tensor([1, 2], device="tpu")).backward()
    assert_close(weight.grad, 2 * wanted)
    assert module.cpu().head.weight is weight and weight.device.type == "cpu"
    assert_close(weight.grad, 2 * wanted)


ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "padding": {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
    "mask": {"attn_mask": torch.ones(5, 5).triu(1).bool()},
    "a mask for each head": {"attn_mask": torch.ones(8, 5, 5).triu(1).bool()},
    "bias": {"attn_mask": numbers(5, 5) / 4},
    "no weights": {"need_weights": False},
    "weights of heads": {"average_attn_weights": False},
}


def on(device: str, options: dict[str, Any]) -> dict[str, Any]:
    return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_that_is_not_trained(name: str, eager_mode: str) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 4, batch_first=True).eval()

    def run(device: str) -> Any:
        x = (numbers(2, 5, 8) / 4).to(device)
        with torch.no_grad():
            return copy.deepcopy(module).to(device)(x, x, x, **on(device, ATTENTION[name]))

    got, wanted = run("tpu"), run("cpu")
    assert_close(got[0], wanted[0])
    assert (got[1] is None) == (wanted[1] is None)
    if wanted[1] is not None:
        assert_close(got[1], wanted[1])


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_an_encoder_that_is_not_trained(norm_first: bool, compiled: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 4, 16, batch_first=True, norm_first=norm_first, activation="gelu")
    module = nn.TransformerEncoder(layer, 2).eval()
    moved = copy.deepcopy(module).to("tpu")
    moved = torch.compile(moved) if compiled else moved
    x, mask = numbers(2, 5, 8) / 4, torch.ones(5, 5).triu(1).bool()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for options in ({}, {"mask": mask}, {"src_key_padding_mask": padding}):
        with torch.no_grad():
            got, wanted = moved(x.to("tpu"), **on("tpu", options)).cpu(), module(x, **options)
        rows = 3 if "src_key_padding_mask" in options else 5
        assert_close(got[:, :rows], wanted[:, :rows])


@pytest.mark.parametrize("make", [lambda: nn.LazyLinear(3), lambda: nn.LazyConv1d(3, 2), nn.LazyBatchNorm1d])
def test_lazy_modules(make: Callable[[], nn.Module]) -> None:
    moved = make().to("tpu")
    moved(torch.ones(2, 4, 5, device="tpu")).sum().backward()
    assert all(parameter.grad.device.type == "tpu" for parameter in moved.parameters())
