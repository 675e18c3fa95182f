"""Llama 3 (Grattafiori et al. 2024): published dimensions, and the layout of its Hugging Face checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from wholestep.errors import ConfigError
from wholestep.models.decoder import Decoder, DecoderLayer
from wholestep.models.layers.attention import Attention
from wholestep.models.layers.feed_forward import FeedForward
from wholestep.models.layers.norm import RMSNorm
from wholestep.models.layers.rotary import Llama3Scaling, RotaryEmbedding


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
    norm = RMSNorm.Config(eps=eps)
    layer = DecoderLayer.Config(
        attention_norm=norm,
        attention=Attention.Config(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim),
        feed_forward_norm=norm,
        feed_forward=FeedForward.Config(hidden_dim=hidden_dim),
    )
    return Decoder.Config(
        vocab_size=vocab_size,
        dim=dim,
        layers=(layer,) * num_layers,
        rotary=RotaryEmbedding.Config(theta=theta, max_sequence_length=max_sequence_length, scaling=scaling),
        norm=norm,
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


# Ours -> Hugging Face's, for every parameter of the family.
_HF_NAMES = (
    (re.compile(r"embed_tokens\.weight"), r"model.embed_tokens.weight"),
    (re.compile(r"norm\.weight"), r"model.norm.weight"),
    (re.compile(r"lm_head\.weight"), r"lm_head.weight"),
    (re.compile(r"layers\.(\d+)\.attention_norm\.weight"), r"model.layers.\1.input_layernorm.weight"),
    (re.compile(r"layers\.(\d+)\.attention\.([qkvo]_proj)\.weight"), r"model.layers.\1.self_attn.\2.weight"),
    (re.compile(r"layers\.(\d+)\.feed_forward_norm\.weight"), r"model.layers.\1.post_attention_layernorm.weight"),
    (re.compile(r"layers\.(\d+)\.feed_forward\.((?:gate|up|down)_proj)\.weight"), r"model.layers.\1.mlp.\2.weight"),
)


def hf_name(name: str) -> str:
    """The name in a Hugging Face Llama checkpoint of the parameter that `Decoder` calls `name`.

    Shapes and layouts are equal on both sides. With tied embeddings neither side stores `lm_head.weight`.
    Raises ConfigError for a name that the family does not have.
    """
    for pattern, replacement in _HF_NAMES:
        if match := pattern.fullmatch(name):
            return match.expand(replacement)
    raise ConfigError(f"Llama checkpoints have no counterpart of the parameter {name!r}")


def hf_config(config: Decoder.Config) -> dict[str, Any]:
    """The `config.json` of a `LlamaForCausalLM` that computes what `config` builds.

    Token ids are the tokenizer's to say: `bos_token_id` and `eos_token_id` are null until the caller sets them.
    Raises ConfigError where layers differ, which that format cannot say.
    """
    layer = config.layers[0]
    if any(other != layer for other in config.layers) or {layer.attention_norm, layer.feed_forward_norm} != {
        config.norm
    }:
        raise ConfigError("a Hugging Face Llama has equal layers and one norm; this model's differ")
    rotary, attention = config.rotary, layer.attention
    if config.dim % attention.num_heads:
        raise ConfigError(
            f"a Hugging Face Llama needs a width that its heads divide; this model's are {config.dim} and "
            f"{attention.num_heads}"
        )
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": layer.feed_forward.hidden_dim,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": config.norm.eps,
        "max_position_embeddings": rotary.max_sequence_length,
        "rope_theta": rotary.theta,
        "rope_scaling": None,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if rotary.scaling is not None:
        values["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": rotary.scaling.factor,
            "low_freq_factor": rotary.scaling.low_freq_factor,
            "high_freq_factor": rotary.scaling.high_freq_factor,
            "original_max_position_embeddings": rotary.scaling.original_max_position,
        }
    return values


def from_hf_config(values: Mapping[str, Any]) -> Decoder.Config:
    """The model that a Llama's `config.json` describes; reads the layouts of transformers 4 and 5.

    Raises ConfigError for another model type, a missing key, or a variant that `Decoder` does not compute.
    """
    required = {"model_type": "llama", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    for key, wanted in required.items():
        if (found := values.get(key, wanted)) != wanted:
            raise ConfigError(f"config.json: {key} is {found!r}; this package's Llama needs {wanted!r}")
    try:
        num_heads, dim = values["num_attention_heads"], values["hidden_size"]
        theta, scaling = _rotary_from_hf(values)
        return llama3_config(
            vocab_size=values["vocab_size"],
            dim=dim,
            num_layers=values["num_hidden_layers"],
            num_heads=num_heads,
            num_kv_heads=values.get("num_key_value_heads") or num_heads,
            head_dim=values.get("head_dim") or dim // num_heads,
            hidden_dim=values["intermediate_size"],
            eps=values["rms_norm_eps"],
            theta=theta,
            max_sequence_length=values["max_position_embeddings"],
            scaling=scaling,
            tie_embeddings=values.get("tie_word_embeddings", False),
        )
    except KeyError as error:
        raise ConfigError(f"config.json: the key {error.args[0]!r} is missing") from error


def _rotary_from_hf(values: Mapping[str, Any]) -> tuple[float, Llama3Scaling | None]:
    # transformers 5 writes one `rope_parameters`; 4 wrote `rope_theta` beside `rope_scaling`.
    rope = values.get("rope_parameters") or {"rope_theta": values["rope_theta"], **(values.get("rope_scaling") or {})}
    theta, kind = float(rope["rope_theta"]), rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ConfigError(f"config.json: rope_type is {kind!r}; this package's Llama knows 'default' and 'llama3'")
    return theta, Llama3Scaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_position=rope["original_max_position_embeddings"],
    )
