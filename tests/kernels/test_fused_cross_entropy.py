"""The fused loss where a head is split over devices: parts of the vocabulary, each with the labels counted from its
start, combine to the whole."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import TOLERANCE, relative_error

from wholestep.kernels.fused_cross_entropy import FusedCrossEntropy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_parts_of_a_vocabulary_combine(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    vocabulary, width, z_loss = 50, 24, 0.1
    x = torch.randn(2, 9, width, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(vocabulary, (2, 9), generator=generator)
    labels[0, :4] = -100

    module, label_logits, log_z = FusedCrossEntropy.Config(tile=8).build(), [], []
    for part, start in zip(weight.split([20, 13, 17]), (0, 20, 33), strict=True):
        here = torch.where(labels >= 0, labels - start, -100)
        picked, denominator = module(x, part, here)
        label_logits.append(picked)
        log_z.append(denominator)
    whole_log_z, counted = torch.stack(log_z).logsumexp(0), labels >= 0
    loss = ((whole_log_z - sum(label_logits) + z_loss * whole_log_z.square()) * counted).sum()

    exact = [tensor.detach().float().requires_grad_() for tensor in (x, weight)]
    logits = F.linear(*exact)
    cross_entropy = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    wanted = cross_entropy + z_loss * (logits.logsumexp(-1).square() * counted).sum()
    assert loss.item() == pytest.approx(wanted.item(), rel=TOLERANCE[dtype])
    gradients = zip(torch.autograd.grad(loss, [x, weight]), torch.autograd.grad(wanted, exact), strict=True)
    for got, right in gradients:
        assert relative_error(got.float().numpy(), right.numpy()) < TOLERANCE[dtype]
