"""Qwen3's dense models (Yang et al. 2025): published dimensions, and the layout of their Hugging Face checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from wholestep.models.layers.feed_forward import FeedForward


def qwen3_config(
    *,
    vocab_size: int = 151936,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    hidden_dim: int,
    max_sequence_length: int = 40960,
    tie_embeddings: bool = False,
) -> Decoder.Config:
    """A decoder of equal layers with Qwen3's parts; the defaults are what its published sizes share."""
    return equal_layers_config(
        vocab_size=vocab_size,
        dim=dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        feed_forward=FeedForward.Config(hidden_dim=hidden_dim),
        eps=1e-6,
        theta=1e6,
        max_sequence_length=max_sequence_length,
        tie_embeddings=tie_embeddings,
        qk_norm=True,
    )


def qwen3_debug_config(*, vocab_size: int = 4096) -> Decoder.Config:
    """About 4 million parameters, to train on two CPU cores. Heads wider together than the model, and tied embeddings,
    as in the smallest published size."""
    return qwen3_config(
        vocab_size=vocab_size,
        dim=256,
        num_layers=4,
        num_heads=12,
        num_kv_heads=4,
        head_dim=32,
        hidden_dim=768,
        max_sequence_length=2048,
        tie_embeddings=True,
    )


def qwen3_0_6b_config() -> Decoder.Config:
    """Qwen3 0.6B."""
    return qwen3_config(dim=1024, num_layers=28, num_heads=16, hidden_dim=3072, tie_embeddings=True)


def qwen3_1_7b_config() -> Decoder.Config:
    """Qwen3 1.7B."""
    return qwen3_config(dim=2048, num_layers=28, num_heads=16, hidden_dim=6144, tie_embeddings=True)


def qwen3_4b_config() -> Decoder.Config:
    """Qwen3 4B."""
    return qwen3_config(dim=2560, num_layers=36, num_heads=32, hidden_dim=9728, tie_embeddings=True)


def qwen3_8b_config() -> Decoder.Config:
    """Qwen3 8B."""
    return qwen3_config(dim=4096, num_layers=36, num_heads=32, hidden_dim=12288)


def qwen3_14b_config() -> Decoder.Config:
    """Qwen3 14B."""
    return qwen3_config(dim=5120, num_layers=40, num_heads=40, hidden_dim=17408)


def qwen3_32b_config() -> Decoder.Config:
    """Qwen3 32B."""
    return qwen3_config(dim=5120, num_layers=64, num_heads=64, hidden_dim=25600)


def hf_names(name: str, config: Decoder.Config) -> tuple[str, ...]:
    """The name in a Hugging Face Qwen3 checkpoint of the parameter that `Decoder` calls `name`.

    Shapes and layouts are equal on both sides. With tied embeddings neither side stores `lm_head.weight`.
    Raises ConfigError for a name that the family does not have.
    """
    return (renamed(name, (*HF_NAMES, HF_FEED_FORWARD_NORM, HF_QK_NORM), "Qwen3"),)


hf_left_out = nothing_left_out


def hf_config(config: Decoder.Config) -> dict[str, Any]:
    """The `config.json` of a `Qwen3ForCausalLM` that computes what `config` builds.

    Token ids are the tokenizer's to say: `bos_token_id` and `eos_token_id` are null until the caller sets them.
    Raises ConfigError for what that format cannot say, layers that differ among it.
    """
    values = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **equal_layers_to_hf(config),
        "intermediate_size": config.layers[0].feed_forward.hidden_dim,
        "use_sliding_window": False,
    }
    check_expressible(config, from_hf_config(values), "Qwen3")
    return values


def from_hf_config(values: Mapping[str, Any]) -> Decoder.Config:
    """The model that a dense Qwen3's `config.json` describes; reads the layouts of transformers 4 and 5.

    Raises ConfigError for another model type, a missing key, or a variant that `Decoder` does not compute.
    """
    required = {"model_type": "qwen3", "hidden_act": "silu", "attention_bias": False, "use_sliding_window": False}
    require(values, required, "Qwen3")
    with missing_keys_named():
        feed_forward = FeedForward.Config(hidden_dim=values["intermediate_size"])
        return equal_layers_config(**equal_layers_from_hf(values), feed_forward=feed_forward, qk_norm=True)
