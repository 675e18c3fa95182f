"""Llama 3 (Grattafiori et al. 2024): published dimensions, and the layout of its Hugging Face checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wholestep.errors import ConfigError
from wholestep.models.decoder import Decoder
from wholestep.models.families import (
    HF_FEED_FORWARD_NORM,
    HF_NAMES,
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
from wholestep.models.layers.rotary import Llama3Scaling


def llama3_config(
    *,
    vocab_size: int = 128256,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    hidden_dim: int,
    eps: float = 1e-5,
    theta: float = 500000.0,
    max_sequence_length: int = 131072,
    scaling: Llama3Scaling | None = None,
    tie_embeddings: bool = False,
) -> Decoder.Config:
    """A decoder of equal layers with Llama 3's parts; the defaults are what its published sizes share."""
    return equal_layers_config(
        vocab_size=vocab_size,
        dim=dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        feed_forward=FeedForward.Config(hidden_dim=hidden_dim),
        eps=eps,
        theta=theta,
        max_sequence_length=max_sequence_length,
        scaling=scaling,
        tie_embeddings=tie_embeddings,
    )


def llama3_debug_config(*, vocab_size: int = 4096) -> Decoder.Config:
    """About 5 million parameters, to train on two CPU cores. Grouped heads, as in the published sizes."""
    return llama3_config(
        vocab_size=vocab_size,
        dim=256,
        num_layers=4,
        num_heads=8,
        num_kv_heads=4,
        head_dim=32,
        hidden_dim=768,
        max_sequence_length=2048,
    )


def llama3_1b_config() -> Decoder.Config:
    """Llama 3.2 1B."""
    return llama3_config(
        dim=2048,
        num_layers=16,
        num_heads=32,
        head_dim=64,
        hidden_dim=8192,
        scaling=Llama3Scaling(factor=32.0),
        tie_embeddings=True,
    )


def llama3_3b_config() -> Decoder.Config:
    """Llama 3.2 3B."""
    return llama3_config(
        dim=3072,
        num_layers=28,
        num_heads=24,
        hidden_dim=8192,
        scaling=Llama3Scaling(factor=32.0),
        tie_embeddings=True,
    )


def llama3_8b_config() -> Decoder.Config:
    """Llama 3.1 8B."""
    return llama3_config(dim=4096, num_layers=32, num_heads=32, hidden_dim=14336, scaling=Llama3Scaling(factor=8.0))


def llama3_70b_config() -> Decoder.Config:
    """Llama 3.1 70B."""
    return llama3_config(dim=8192, num_layers=80, num_heads=64, hidden_dim=28672, scaling=Llama3Scaling(factor=8.0))


def llama3_405b_config() -> Decoder.Config:
    """Llama 3.1 405B."""
    return llama3_config(dim=16384, num_layers=126, num_heads=128, hidden_dim=53248, scaling=Llama3Scaling(factor=8.0))


def hf_names(name: str, config: Decoder.Config) -> tuple[str, ...]:
    """The name in a Hugging Face Llama checkpoint of the parameter that `Decoder` calls `name`.

    Shapes and layouts are equal on both sides. With tied embeddings neither side stores `lm_head.weight`.
    Raises ConfigError for a name that the family does not have.
    """
    return (renamed(name, (*HF_NAMES, HF_FEED_FORWARD_NORM), "Llama"),)


hf_left_out = nothing_left_out


def hf_config(config: Decoder.Config) -> dict[str, Any]:
    """The `config.json` of a `LlamaForCausalLM` that computes what `config` builds.

    Token ids are the tokenizer's to say: `bos_token_id` and `eos_token_id` are null until the caller sets them.
    Raises ConfigError for what that format cannot say, layers that differ among it.
    """
    num_heads = config.layers[0].attention.num_heads
    if config.dim % num_heads:
        raise ConfigError(
            f"a Hugging Face Llama needs a width that its heads divide; this model's are {config.dim} and {num_heads}"
        )
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **equal_layers_to_hf(config),
        "intermediate_size": config.layers[0].feed_forward.hidden_dim,
        "mlp_bias": False,
    }
    check_expressible(config, from_hf_config(values), "Llama")
    return values


def from_hf_config(values: Mapping[str, Any]) -> Decoder.Config:
    """The model that a Llama's `config.json` describes; reads the layouts of transformers 4 and 5.

    Raises ConfigError for another model type, a missing key, or a variant that `Decoder` does not compute.
    """
    required = {"model_type": "llama", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    require(values, required, "Llama")
    with missing_keys_named():
        feed_forward = FeedForward.Config(hidden_dim=values["intermediate_size"])
        return equal_layers_config(**equal_layers_from_hf(values), feed_forward=feed_forward)
