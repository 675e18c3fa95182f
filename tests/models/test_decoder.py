"""The decoder as a whole: packing, counting, initialization, capture."""

from __future__ import annotations

import math

import pytest
import torch
from models.families import FAMILIES, Family
from torch import Tensor
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from wholestep.config.override import replace
from wholestep.errors import ConfigError
from wholestep.graph.initialize import capture_initializers
from wholestep.kernels.grouped_experts import GroupedExperts
from wholestep.models import muse_glimmer
from wholestep.models.decoder import Decoder
from wholestep.models.layers.mixture import MixtureOfExperts
from wholestep.models.llama3 import llama3_config
from wholestep.models.objectives import NextToken


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def tiny_config(*, tie_embeddings: bool = False) -> Decoder.Config:
    return llama3_config(
        vocab_size=64,
        dim=32,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        hidden_dim=48,
        max_sequence_length=64,
        tie_embeddings=tie_embeddings,
    )


def build(config: Decoder.Config) -> Decoder:
    model = config.build()
    model.init_weights()
    return model


def batch_of(documents: list[Tensor], length: int) -> dict[str, Tensor]:
    """One row that packs the documents, padded to `length`."""
    batch = {
        "tokens": torch.cat([document[:-1] for document in documents]),
        "labels": torch.cat([document[1:] for document in documents]),
        "positions": torch.cat([torch.arange(len(document) - 1) for document in documents]),
        "segment_ids": torch.cat([torch.full((len(d) - 1,), i) for i, d in enumerate(documents, start=1)]),
    }
    missing = length - len(batch["tokens"])
    fill = {"labels": -100}
    return {
        name: torch.nn.functional.pad(value, (0, missing), value=fill.get(name, 0))[None]
        for name, value in batch.items()
    }


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_packed_row_equals_separate_documents(tie_embeddings: bool) -> None:
    model, objective = build(tiny_config(tie_embeddings=tie_embeddings)), NextToken().build()
    documents = [torch.randint(64, (n,)) for n in (5, 9, 2)]
    parameters = list(model.parameters())

    packed = batch_of(documents, 16)
    loss, weight, _ = objective(model, packed)
    gradients = torch.autograd.grad(loss, parameters)
    logits_LV = model(packed["tokens"], packed["positions"], packed["segment_ids"])[0]

    rows = [batch_of([document], len(document) - 1) for document in documents]
    separate = [objective(model, row) for row in rows]
    separate_loss = sum(row_loss for row_loss, _, _ in separate)
    separate_logits_LV = torch.cat([model(row["tokens"], row["positions"], row["segment_ids"])[0] for row in rows])

    assert weight.dtype == loss.dtype == torch.float32
    assert weight == sum(row_weight for _, row_weight, _ in separate) == 13
    torch.testing.assert_close(loss, separate_loss)
    torch.testing.assert_close(logits_LV[:13], separate_logits_LV)
    for (name, _), got, wanted in zip(
        model.named_parameters(), gradients, torch.autograd.grad(separate_loss, parameters), strict=True
    ):
        torch.testing.assert_close(got, wanted, msg=lambda text, name=name: f"{name}: {text}")


def test_loss_by_hand() -> None:
    class Uniform(torch.nn.Module):
        def forward(self, tokens_BL: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, None]:
            return torch.zeros(tokens_BL.shape), torch.full(tokens_BL.shape, math.log(10)), None

    labels = torch.tensor([[1, -100, 3], [-100, -100, 9]])
    batch = dict.fromkeys(("tokens", "labels", "positions", "segment_ids"), labels)
    loss_sum, weight, metrics = NextToken().build()(Uniform(), batch)
    assert loss_sum.dtype == torch.float32
    assert loss_sum.item() == pytest.approx(3 * math.log(10))
    assert weight.item() == 3
    assert metrics == {}
    with_z, _, metrics = NextToken(z_loss=0.5).build()(Uniform(), batch)
    assert with_z.item() == pytest.approx(3 * math.log(10) + 0.5 * 3 * math.log(10) ** 2)
    assert metrics["cross_entropy"].item() == pytest.approx(3 * math.log(10))
    validation, _, metrics = NextToken(z_loss=0.5).build()(Uniform().eval(), batch)
    assert validation.item() == pytest.approx(3 * math.log(10))
    assert metrics == {}


def test_later_tokens_do_not_change_earlier_logits() -> None:
    model = build(tiny_config())
    tokens, positions, segments = torch.randint(64, (1, 8)), torch.arange(8)[None], torch.ones(1, 8, dtype=torch.long)
    changed = tokens.clone()
    changed[0, 5:] = (changed[0, 5:] + 1) % 64
    torch.testing.assert_close(model(tokens, positions, segments)[:, :5], model(changed, positions, segments)[:, :5])


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_num_parameters_is_what_is_built(tie_embeddings: bool) -> None:
    config = tiny_config(tie_embeddings=tie_embeddings)
    model = build(config)
    assert config.num_parameters() == sum(parameter.numel() for parameter in model.parameters())
    assert (model.lm_head.weight is model.embed_tokens.weight) == tie_embeddings


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_flops_count_every_product_of_forward_and_backward(family: Family) -> None:
    config = family.tiny(False)
    if isinstance(config.layers[0].feed_forward, MixtureOfExperts.Config):
        # What is spared; plain PyTorch multiplies each row by every expert.
        config = replace(config, "layers.*.feed_forward.inner", GroupedExperts.Plain())
    B, L = 2, 16
    tokens = torch.randint(64, (B, L))
    batch = {
        "tokens": tokens,
        "labels": tokens,
        "positions": torch.arange(L).expand(B, L),
        "segment_ids": torch.ones_like(tokens),
    }
    model, objective = build(config), NextToken().build()
    with FlopCounterMode(display=False) as counter:
        loss_sum, _, _ = objective(model, batch)
        loss_sum.backward()
    assert config.flops_per_token(L) * B * L == counter.get_total_flops()


def test_flops_by_hand() -> None:
    config = tiny_config()
    layer_weights = 32 * 32 + 32 * 16 + 32 * 16 + 32 * 32 + 3 * 32 * 48
    assert config.flops_per_token(100) == 6 * (3 * layer_weights + 32 * 64) + 3 * 12 * 4 * 8 * 100


def test_init_weights_sets_everything_in_place() -> None:
    model = build(tiny_config())
    before = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    expected = {name: value.detach().clone() for name, value in before.items()}
    with torch.no_grad():
        for value in before.values():
            value.fill_(math.nan)
    model.init_weights()
    for name, value in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        assert value is before[name]
        assert value.isfinite().all(), name
        if "norm" in name or "rotary" in name:
            assert torch.equal(value, expected[name]), name
        else:
            residual = "o_proj" in name or "down_proj" in name
            std = 0.02 / math.sqrt(6) if residual else 0.02
            assert value.std().item() == pytest.approx(std, rel=0.15), name


def test_init_weights_can_be_traced() -> None:
    with torch.device("meta"):
        model = tiny_config().build()

    def initialize(state: dict[str, Tensor]) -> dict[str, Tensor]:
        class Initialize(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self) -> None:
                self.model.init_weights()

        functional_call(Initialize(), {f"model.{name}": value for name, value in state.items()}, ())
        return state

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {name: torch.empty_like(value, device="cpu") for name, value in state.items()}
    graph = make_fx(initialize, tracing_mode="fake")(state)
    assert all(value.isfinite().all() for value in graph(state).values())


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_familys_init_weights_sets_everything(family: Family) -> None:
    with torch.device("meta"):
        model = family.tiny(False).build()
    initializers = capture_initializers(model)
    assert len(initializers) == len([*model.parameters(), *model.buffers()])
    for name, initializer in initializers.items():
        (value,) = initializer.module()
        zero = "norm" in name if family.module is muse_glimmer else name.endswith(("counted", "tokens_per_expert"))
        assert value.any() != zero, name


def test_layers_must_agree_on_head_dim() -> None:
    config = replace(tiny_config(), "layers.1.attention.head_dim", 16)
    with pytest.raises(ConfigError, match=r"one attention.head_dim, got \[8, 16\]"):
        config.build()
