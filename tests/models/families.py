"""The model families under test: what each is called on either side, and a tiny model of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from wholestep.checkpoint.huggingface import divided
from wholestep.config.node import Node
from wholestep.kernels.grouped_experts import GroupedExperts
from wholestep.kernels.route_score import FusedRouteScore
from wholestep.models import llama3, muse_glimmer, qwen3, qwen3_moe
from wholestep.models.decoder import Decoder
from wholestep.models.layers.rotary import Llama3Scaling

VOCABULARY = 96
TINY_SIZES = {"vocab_size": VOCABULARY, "dim": 32, "num_kv_heads": 2, "head_dim": 16, "max_sequence_length": 64}


@dataclass(frozen=True)
class Family:
    """A module of `wholestep.models`, and its counterpart in transformers.

    Attributes:
        module: ours.
        tiny: a small model, its layers as different as the family's are; with tied embeddings if so told.
        config_class: theirs.
        model_class: theirs.
        auto_class: theirs, by which a folder is loaded.
        published: how many parameters each of our published sizes has.
        can_tie: whether embedding and head can be one.
        how: what of its feed-forwards no checkpoint says.
    """

    module: ModuleType
    tiny: Callable[[bool], Decoder.Config]
    config_class: type[transformers.PretrainedConfig]
    model_class: type[transformers.PreTrainedModel]
    auto_class: Any
    published: dict[Callable[[], Decoder.Config], int]
    can_tie: bool = True
    how: Mapping[str, Node | bool] = field(default_factory=lambda: {"narrow_up_init": True})

    def __str__(self) -> str:
        return self.module.__name__.rpartition(".")[2]


def tiny_llama3(tied: bool) -> Decoder.Config:
    # So short an original context that the 40 positions meet kept, interpolated and stretched frequencies.
    scaling = Llama3Scaling(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=16)
    return llama3.llama3_config(
        **TINY_SIZES, num_layers=2, num_heads=4, hidden_dim=64, theta=100.0, scaling=scaling, tie_embeddings=tied
    )


def tiny_qwen3(tied: bool) -> Decoder.Config:
    return qwen3.qwen3_config(**TINY_SIZES, num_layers=2, num_heads=6, hidden_dim=64, tie_embeddings=tied)


def tiny_qwen3_moe(tied: bool) -> Decoder.Config:
    return qwen3_moe.qwen3_moe_config(
        **TINY_SIZES, num_layers=2, num_heads=6, hidden_dim=12, num_experts=5, num_chosen=2, tie_embeddings=tied
    )


def tiny_muse_glimmer(tied: bool = False) -> Decoder.Config:
    assert not tied
    return muse_glimmer.muse_glimmer_config(
        **TINY_SIZES,
        layers=muse_glimmer.pattern(num_layers=8, window=4),
        num_heads=4,
        hidden_dim=48,
        theta=100.0,
        query_scale=1.7,  # with the published one, attention so sharp would blow up rounding
        output_multiplier=0.7,
        output_soft_cap=3.0,
    )


FAMILIES = (
    Family(
        llama3,
        tiny_llama3,
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        transformers.AutoModelForCausalLM,
        {
            llama3.llama3_1b_config: 1_235_814_400,
            llama3.llama3_3b_config: 3_212_749_824,
            llama3.llama3_8b_config: 8_030_261_248,
            llama3.llama3_70b_config: 70_553_706_496,
            llama3.llama3_405b_config: 405_853_388_800,
        },
    ),
    Family(
        qwen3,
        tiny_qwen3,
        transformers.Qwen3Config,
        transformers.Qwen3ForCausalLM,
        transformers.AutoModelForCausalLM,
        {
            qwen3.qwen3_0_6b_config: 596_049_920,
            qwen3.qwen3_1_7b_config: 1_720_574_976,
            qwen3.qwen3_4b_config: 4_022_468_096,
            qwen3.qwen3_8b_config: 8_190_735_360,
            qwen3.qwen3_14b_config: 14_768_307_200,
            qwen3.qwen3_32b_config: 32_762_123_264,
        },
    ),
    Family(
        qwen3_moe,
        tiny_qwen3_moe,
        transformers.Qwen3MoeConfig,
        transformers.Qwen3MoeForCausalLM,
        transformers.AutoModelForCausalLM,
        {qwen3_moe.qwen3_30b_a3b_config: 30_532_122_624, qwen3_moe.qwen3_235b_a22b_config: 235_093_634_560},
        how={"inner": GroupedExperts.Plain(), "route_score": FusedRouteScore.Config()},
    ),
    Family(
        muse_glimmer,
        tiny_muse_glimmer,
        transformers.MuseGlimmerConfig,
        transformers.MuseGlimmerForConditionalGeneration,
        transformers.AutoModelForImageTextToText,
        {muse_glimmer.muse_glimmer_30b_config: 27_854_780_928},
        can_tie=False,
    ),
)


def hf_tensors(family: Family, model: Decoder) -> dict[str, Tensor]:
    """The model's parameters, and parts of them, as a checkpoint calls them; all views."""
    parameters = model.named_parameters()
    return dict(part for name, own in parameters for part in divided(family.module.hf_names(name, model.config), own))


@torch.no_grad()
def randomize(model: nn.Module) -> None:
    """Make every parameter matter: matrices of about unit gain, and of vectors, which start at 0 or 1, none alike."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
        else:
            parameter.add_(torch.randn_like(parameter), alpha=0.3)


@torch.no_grad()
def logits_of(model: Decoder, tokens_BL: Tensor, positions_BL: Tensor | None = None) -> Tensor:
    """Positions that restart, if any are given, are where documents start."""
    if positions_BL is None:
        positions_BL = torch.arange(tokens_BL.shape[1]).expand_as(tokens_BL)
    return model(tokens_BL, positions_BL, (positions_BL == 0).cumsum(1))


@torch.no_grad()
def hf_logits_of(model: transformers.PreTrainedModel, tokens_BL: Tensor, positions_BL: Tensor | None = None) -> Tensor:
    return model(input_ids=tokens_BL, position_ids=positions_BL, use_cache=False).logits
