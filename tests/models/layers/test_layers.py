"""Each layer against its formula worked out by hand or an independent one of PyTorch's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.masking_utils import sliding_window_causal_mask_function

from wholestep.config.node import Node
from wholestep.errors import ConfigError
from wholestep.models.layers.attention import Attention, DotProductAttention
from wholestep.models.layers.feed_forward import FeedForward
from wholestep.models.layers.initialization import init_projection, residual_std
from wholestep.models.layers.norm import RMSNorm
from wholestep.models.layers.rotary import Llama3Scaling, RotaryEmbedding, rotate


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_norm_by_hand() -> None:
    norm = RMSNorm.Config(eps=0.0).build(dim=2)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0]))
    # The mean of squares of (1, 7) is 25.
    torch.testing.assert_close(norm(torch.tensor([1.0, 7.0])), torch.tensor([0.2, 2.8]))


def test_norm_with_a_centred_gain_by_hand() -> None:
    norm = RMSNorm.Config(eps=0.0, center=1.0).build(dim=2)
    assert not norm.weight.any()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.0, 0.5]))
    torch.testing.assert_close(norm(torch.tensor([1.0, 7.0])), torch.tensor([0.2, 1.4 * 1.5]))


def test_a_centred_gain_is_applied_in_fp32() -> None:
    norm = RMSNorm.Config(center=1.0).build(dim=64).bfloat16()
    with torch.no_grad():
        norm.weight.fill_(0.001)  # lost if added to 1 in bfloat16
    x = torch.randn(4, 64).bfloat16()
    expected = F.rms_norm(x.float(), (64,), torch.full((64,), 1 + norm.weight[0].item()), eps=1e-5).bfloat16()
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=0)


def test_norm_without_a_gain_has_no_parameters() -> None:
    config = RMSNorm.Config(eps=0.0, affine=False)
    norm = config.build(dim=2)
    assert config.num_parameters(2) == len(list(norm.parameters())) == 0
    torch.testing.assert_close(norm(torch.tensor([1.0, 7.0])), torch.tensor([0.2, 1.4]))


def test_norm_divides_in_fp32_and_keeps_the_dtype() -> None:
    norm = RMSNorm.Config().build(dim=64).bfloat16()
    x = (torch.randn(4, 64) * 1000).bfloat16()
    out = norm(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, F.rms_norm(x.float(), (64,), eps=1e-5).bfloat16(), rtol=0, atol=0)


def test_rotary_angles_and_rotation_by_hand() -> None:
    rotary = RotaryEmbedding.Config(theta=100.0, max_sequence_length=4).build(head_dim=4)
    cos_BLH, sin_BLH = rotary(torch.tensor([[0, 3]]))
    assert cos_BLH.dtype == sin_BLH.dtype == torch.float32
    # Frequencies are 100^0 and 100^(-1/2).
    torch.testing.assert_close(cos_BLH[0, 1], torch.tensor([math.cos(3.0), math.cos(0.3)] * 2))
    sin = math.sin(3.0), math.sin(0.3)
    torch.testing.assert_close(sin_BLH[0, 1], torch.tensor([-sin[0], -sin[1], *sin]))
    x_BLNH = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(1, 2, 1, 4)
    turned_BLNH = rotate(x_BLNH, cos_BLH, sin_BLH)
    torch.testing.assert_close(turned_BLNH[0, 0], x_BLNH[0, 0])
    first = complex(1, 3) * complex(math.cos(3.0), math.sin(3.0))
    second = complex(2, 4) * complex(math.cos(0.3), math.sin(0.3))
    expected = torch.tensor([[first.real, second.real, first.imag, second.imag]])
    torch.testing.assert_close(turned_BLNH[0, 1], expected)
    assert rotate(x_BLNH.bfloat16(), cos_BLH, sin_BLH).dtype == torch.bfloat16


def test_the_gradient_of_a_rotation() -> None:
    cos_BLH, sin_BLH = (table.double() for table in RotaryEmbedding.Config().build(head_dim=6)(torch.arange(4)[None]))
    x_BLNH, grad_BLNH = torch.randn(2, 1, 4, 3, 6)
    x_BLNH.requires_grad_()
    (got_BLNH,) = torch.autograd.grad(rotate(x_BLNH, cos_BLH, sin_BLH), x_BLNH, grad_BLNH)

    def by_halves(x_BLNH: Tensor) -> Tensor:
        first, second = x_BLNH.double().chunk(2, dim=-1)
        cos, sin = cos_BLH[:, :, None, 3:], sin_BLH[:, :, None, 3:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    (want_BLNH,) = torch.autograd.grad(by_halves(x_BLNH), x_BLNH, grad_BLNH.double())
    torch.testing.assert_close(got_BLNH, want_BLNH)
    half = x_BLNH.detach().bfloat16().requires_grad_()
    (got_BLNH,) = torch.autograd.grad(rotate(half, cos_BLH.float(), sin_BLH.float()), half, grad_BLNH.bfloat16())
    (want_BLNH,) = torch.autograd.grad(by_halves(half), half, grad_BLNH.bfloat16().double())
    torch.testing.assert_close(got_BLNH, want_BLNH, rtol=2**-8, atol=1e-6)  # rounded once: half a unit, and fp32's own


def test_llama3_scaling_keeps_short_and_stretches_long_wavelengths() -> None:
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192)
    turns_P = torch.tensor([100.0, 4.0, 2.5, 1.0, 0.1])
    frequencies_P = turns_P * 2 * math.pi / 8192
    # Half way between the bounds, half of the frequency is kept and half divided.
    ratio_P = torch.tensor([1.0, 1.0, 0.5 + 0.5 / 8, 1 / 8, 1 / 8])
    torch.testing.assert_close(scaling.scale(frequencies_P), frequencies_P * ratio_P)


def test_rotary_buffer_is_not_saved_and_is_restored_by_init_weights() -> None:
    config = RotaryEmbedding.Config(scaling=Llama3Scaling(factor=8.0))
    rotary = config.build(head_dim=8)
    assert not rotary.state_dict()
    with torch.device("meta"):
        empty = config.build(head_dim=8)
    empty.to_empty(device="cpu")
    empty.init_weights()
    assert torch.equal(empty.inverse_frequencies, rotary.inverse_frequencies)


def test_rotary_refuses() -> None:
    with pytest.raises(ConfigError, match="head_dim must be even, got 5"):
        RotaryEmbedding.Config().build(head_dim=5)
    with pytest.raises(
        ConfigError, match=r"a row of 3 tokens is longer than the model's rotary.max_sequence_length, 2"
    ):
        RotaryEmbedding.Config(max_sequence_length=2).build(head_dim=4)(torch.zeros(1, 3, dtype=torch.long))


def random_heads(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    B, L, N, K, H = 2, 7, 6, 2, 4
    return torch.randn(B, L, N, H, dtype=dtype), *(torch.randn(B, L, K, H, dtype=dtype) for _ in range(2))


def test_attention_equals_torch_on_packed_rows_with_padding() -> None:
    q_BLNH, k_BLKH, v_BLKH = random_heads()
    segment_ids_BL = torch.tensor([[1, 1, 1, 2, 2, 0, 0], [1, 2, 3, 3, 3, 3, 3]])
    out_BLNH = DotProductAttention.Config().build()(q_BLNH, k_BLKH, v_BLKH, segment_ids_BL)
    mask_BLM = (segment_ids_BL[:, :, None] == segment_ids_BL[:, None, :]).tril() & (segment_ids_BL > 0)[:, None]
    expected_BNLH = F.scaled_dot_product_attention(
        q_BLNH.transpose(1, 2), k_BLKH.transpose(1, 2), v_BLKH.transpose(1, 2), mask_BLM[:, None], enable_gqa=True
    )
    torch.testing.assert_close(out_BLNH, expected_BNLH.transpose(1, 2))


def test_attention_keeps_the_dtype_and_padding_alone_is_zeros() -> None:
    q_BLNH, k_BLKH, v_BLKH = random_heads(torch.bfloat16)
    attention = DotProductAttention.Config().build()
    out_BLNH = attention(q_BLNH * 1e4, k_BLKH * 1e4, v_BLKH, torch.zeros(2, 7, dtype=torch.long))
    assert out_BLNH.dtype == torch.bfloat16
    assert not out_BLNH.any()


@pytest.mark.parametrize("window", [1, 4, 16])
def test_a_windows_mask_is_transformers_own(window: int) -> None:
    L = 16
    index = torch.arange(L)
    expected_LM = sliding_window_causal_mask_function(window)(0, 0, index[:, None], index)
    # Values that are one-hot by key, so that what comes out is the probabilities.
    one_hot_BLKH = torch.eye(L)[None, :, None]
    attention = DotProductAttention.Config(window=window).build()
    out_BLNH = attention(torch.randn(1, L, 1, L), torch.randn(1, L, 1, L), one_hot_BLKH, torch.ones(1, L))
    assert torch.equal(out_BLNH[0, :, 0] > 0, expected_LM)
    assert expected_LM.sum(1).tolist() == [min(i + 1, window) for i in range(L)]


def attend(**settings: object) -> tuple[Attention, Tensor, Tensor, tuple[Tensor, ...]]:
    """A layer, its input, what the core returned, and the queries and keys that the core was given."""
    attention = Attention.Config(num_heads=4, num_kv_heads=2, head_dim=8, **settings).build(dim=16, num_layers=1)
    cos_BLH, sin_BLH = RotaryEmbedding.Config(theta=10.0).build(head_dim=8)(torch.arange(3)[None])
    x_BLD, seen = torch.randn(1, 3, 16), []
    attention.inner.register_forward_hook(lambda module, args, result: seen.append((args, result)))
    out_BLD = attention(x_BLD, cos_BLH, sin_BLH, torch.ones(1, 3, dtype=torch.long))
    ((args, core_BLNH),) = seen
    assert out_BLD.shape == x_BLD.shape
    return attention, x_BLD, core_BLNH, (*args[:2], out_BLD, cos_BLH, sin_BLH)


def test_query_and_key_heads_are_normalized_before_they_are_rotated() -> None:
    attention, x_BLD, _, (q_BLNH, k_BLKH, _, cos_BLH, sin_BLH) = attend(qk_norm=RMSNorm.Config(eps=0.0))
    for norm, projection, got in (
        (attention.q_norm, attention.q_proj, q_BLNH),
        (attention.k_norm, attention.k_proj, k_BLKH),
    ):
        heads = projection(x_BLD).unflatten(-1, (-1, 8))
        expected = heads / heads.square().mean(-1, keepdim=True).sqrt() * norm.weight
        torch.testing.assert_close(got, rotate(expected, cos_BLH, sin_BLH))


def test_attention_without_rotation() -> None:
    attention, x_BLD, _, (q_BLNH, k_BLKH, *_) = attend(rotary=False)
    assert torch.equal(q_BLNH.flatten(2), attention.q_proj(x_BLD))
    assert torch.equal(k_BLKH.flatten(2), attention.k_proj(x_BLD))


def test_output_gate() -> None:
    attention, x_BLD, core_BLNH, (_, _, out_BLD, *_) = attend(output_gate=True)
    gate_BLX = 1 / (1 + torch.exp(-attention.gate_proj(x_BLD)))
    torch.testing.assert_close(out_BLD, attention.o_proj(core_BLNH.flatten(2) * gate_BLX))


def test_attention_refuses_heads_that_do_not_divide() -> None:
    config = Attention.Config(num_heads=6, num_kv_heads=4, head_dim=8)
    with pytest.raises(ConfigError, match="num_heads=6 and num_kv_heads=4"):
        config.build(dim=48, num_layers=1)


class Zero(nn.Module):
    @dataclass(frozen=True, kw_only=True)
    class Config(Node):
        def build(self) -> Zero:
            return Zero()

    def forward(self, q_BLNH: Tensor, k_BLKH: Tensor, v_BLKH: Tensor, segment_ids_BL: Tensor) -> Tensor:
        return torch.zeros_like(q_BLNH)


def test_attention_inner_is_replaceable() -> None:
    config = Attention.Config(num_heads=4, num_kv_heads=2, head_dim=8, inner=Zero.Config())
    cos_BLH, sin_BLH = RotaryEmbedding.Config().build(head_dim=8)(torch.arange(3)[None])
    attention = config.build(dim=16, num_layers=1)
    out_BLD = attention(torch.randn(1, 3, 16), cos_BLH, sin_BLH, torch.ones(1, 3, dtype=torch.long))
    assert torch.equal(out_BLD, torch.zeros(1, 3, 16))


def test_feed_forward_by_hand() -> None:
    feed_forward = FeedForward.Config(hidden_dim=1).build(dim=1, num_layers=1)
    with torch.no_grad():
        for weight, value in (
            (feed_forward.gate_proj, 2.0),
            (feed_forward.up_proj, 3.0),
            (feed_forward.down_proj, 5.0),
        ):
            weight.weight.fill_(value)
    # x = 1: silu(2) * 3 * 5
    torch.testing.assert_close(feed_forward(torch.ones(1, 1, 1)).item(), 2 / (1 + math.exp(-2)) * 15)


def test_projection_weights_are_a_cut_normal() -> None:
    weight = torch.empty(200_000)
    init_projection(weight, std=0.1)
    assert weight.abs().max() <= 0.3
    # A normal cut at three widths has 0.9733 of its variance, and 0.6845 of it within one width.
    assert weight.std().item() == pytest.approx(0.1 * math.sqrt(0.9733), rel=0.01)
    assert weight.mean().item() == pytest.approx(0.0, abs=1e-3)
    assert (weight.abs() < 0.1).float().mean().item() == pytest.approx(0.6845, abs=5e-3)
    assert residual_std(8) == 0.02 / 4
