"""Qwen3's mixtures of experts (Yang et al. 2025): published dimensions, and the layout of their Hugging Face
checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wholestep.errors import ConfigError
from wholestep.models.decoder import Decoder
from wholestep.models.families import (
    HF_FEED_FORWARD_NORM,
    HF_NAMES,
    HF_QK_NORM,
    check_expressible,
    equal_layers_config,
    equal_layers_from_hf,
    equal_layers_to_hf,
    missing_keys_named,
    nothing_left_out,
    renamed,
    require,
)
from wholestep.models.layers.mixture import MixtureOfExperts


def qwen3_moe_config(
    *,
    vocab_size: int = 151936,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int = 4,
    head_dim: int = 128,
    hidden_dim: int,
    num_experts: int = 128,
    num_chosen: int = 8,
    max_sequence_length: int = 40960,
    tie_embeddings: bool = False,
) -> Decoder.Config:
    """A decoder of equal layers with Qwen3's parts and a mixture of experts, each `hidden_dim` wide; the defaults are
    what the published sizes share."""
    return equal_layers_config(
        vocab_size=vocab_size,
        dim=dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        feed_forward=MixtureOfExperts.Config(
            hidden_dim=hidden_dim, num_experts=num_experts, num_chosen=num_chosen, balance_rate=1e-3
        ),
        eps=1e-6,
        theta=1e6,
        max_sequence_length=max_sequence_length,
        tie_embeddings=tie_embeddings,
        qk_norm=True,
    )


def qwen3_moe_debug_config(*, vocab_size: int = 4096) -> Decoder.Config:
    """About 5 million parameters, to train on two CPU cores. Heads together twice as wide as the model, and experts as
    narrow beside it as in the published sizes."""
    return qwen3_moe_config(
        vocab_size=vocab_size,
        dim=192,
        num_layers=4,
        num_heads=12,
        head_dim=32,
        hidden_dim=144,
        num_experts=8,
        num_chosen=2,
        max_sequence_length=2048,
    )


def qwen3_30b_a3b_config() -> Decoder.Config:
    """Qwen3 30B-A3B: 3B of the parameters take part in a token."""
    return qwen3_moe_config(dim=2048, num_layers=48, num_heads=32, hidden_dim=768)


def qwen3_235b_a22b_config() -> Decoder.Config:
    """Qwen3 235B-A22B: 22B of the parameters take part in a token."""
    return qwen3_moe_config(dim=4096, num_layers=94, num_heads=64, hidden_dim=1536)


_HF_NAMES = (
    *(*HF_NAMES, HF_FEED_FORWARD_NORM, HF_QK_NORM),
    (r"layers\.(\d+)\.feed_forward\.router\.weight", r"model.layers.\1.mlp.gate.weight"),
    (r"layers\.(\d+)\.feed_forward\.((?:gate|up|down)_proj)", r"model.layers.\1.mlp.experts.{expert}.\2.weight"),
)


def hf_names(name: str, config: Decoder.Config) -> tuple[str, ...]:
    """The names in a Hugging Face Qwen3 MoE checkpoint of the parameter that `Decoder` calls `name`.

    What is one parameter here is a tensor for each expert there, as published and as `save_pretrained` writes it,
    though transformers 5 has gate and up projections of all experts as one parameter in memory. With tied embeddings
    neither side stores `lm_head.weight`. Raises ConfigError for a name that the family does not have.
    """
    found = renamed(name, _HF_NAMES, "Qwen3 MoE")
    if "{expert}" not in found:
        return (found,)
    mixture = config.layers[0].feed_forward
    assert isinstance(mixture, MixtureOfExperts.Config), f"a model without mixtures of experts has no {name}"
    return tuple(found.format(expert=expert) for expert in range(mixture.num_experts))


hf_left_out = nothing_left_out


def hf_config(config: Decoder.Config) -> dict[str, Any]:
    """The `config.json` of a `Qwen3MoeForCausalLM` that computes what `config` builds, kernels aside.

    Token ids are the tokenizer's to say: `bos_token_id` and `eos_token_id` are null until the caller sets them.
    Raises ConfigError for what that format cannot say: layers that differ, experts balanced in another way than by a
    loss.
    """
    mixture = config.layers[0].feed_forward
    if not isinstance(mixture, MixtureOfExperts.Config):
        raise ConfigError("a Qwen3 MoE has mixtures of experts for feed-forwards; this model has none")
    values = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **equal_layers_to_hf(config),
        # Of layers without experts, which there are not; as published, what a token's experts have together.
        "intermediate_size": mixture.num_chosen * mixture.hidden_dim,
        "moe_intermediate_size": mixture.hidden_dim,
        "num_experts": mixture.num_experts,
        "num_experts_per_tok": mixture.num_chosen,
        "norm_topk_prob": mixture.normalize_scores,
        "router_aux_loss_coef": mixture.balance_rate,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }
    check_expressible(config, from_hf_config(values), "Qwen3 MoE")
    return values


def from_hf_config(values: Mapping[str, Any]) -> Decoder.Config:
    """The model that a Qwen3 MoE's `config.json` describes; reads the layouts of transformers 4 and 5.

    Raises ConfigError for another model type, a missing key, or a variant that `Decoder` does not compute or that this
    family leaves out: layers without experts.
    """
    required = {
        "model_type": "qwen3_moe",
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    require(values, required, "Qwen3 MoE")
    with missing_keys_named():
        mixture = MixtureOfExperts.Config(
            hidden_dim=values["moe_intermediate_size"],
            # transformers 5 writes the second; 4 wrote, and published configs have, the first.
            num_experts=values["num_experts" if "num_experts" in values else "num_local_experts"],
            num_chosen=values["num_experts_per_tok"],
            normalize_scores=values["norm_topk_prob"],
            balance_rate=values["router_aux_loss_coef"],
        )
        return equal_layers_config(**equal_layers_from_hf(values), feed_forward=mixture, qk_norm=True)
