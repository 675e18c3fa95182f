"""What model families share: decoders of equal pre-norm layers, and the layout of Hugging Face checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from wholestep.config.override import flatten
from wholestep.errors import ConfigError
from wholestep.models.decoder import Decoder, DecoderLayer
from wholestep.models.layers.attention import Attention, CoreAttention
from wholestep.models.layers.feed_forward import FeedForward
from wholestep.models.layers.head import LabelLogits
from wholestep.models.layers.mixture import MixtureOfExperts
from wholestep.models.layers.norm import RMSNorm
from wholestep.models.layers.rotary import Llama3Scaling, RotaryEmbedding


def equal_layers_config(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    feed_forward: FeedForward.Config | MixtureOfExperts.Config,
    eps: float,
    theta: float,
    max_sequence_length: int,
    scaling: Llama3Scaling | None = None,
    tie_embeddings: bool = False,
    qk_norm: bool = False,
) -> Decoder.Config:
    """A decoder of equal layers, and of equal norms, for the heads of queries and keys too if `qk_norm`."""
    norm = RMSNorm.Config(eps=eps)
    layer = DecoderLayer.Config(
        attention_norm=norm,
        attention=Attention.Config(
            num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, qk_norm=norm if qk_norm else None
        ),
        feed_forward_norm=norm,
        feed_forward=feed_forward,
    )
    return Decoder.Config(
        vocab_size=vocab_size,
        dim=dim,
        layers=(layer,) * num_layers,
        rotary=RotaryEmbedding.Config(theta=theta, max_sequence_length=max_sequence_length, scaling=scaling),
        norm=norm,
        tie_embeddings=tie_embeddings,
    )


# Ours -> Hugging Face's, for the parameters that all families have and name alike.
HF_NAMES = (
    (r"embed_tokens\.weight", r"model.embed_tokens.weight"),
    (r"norm\.weight", r"model.norm.weight"),
    (r"lm_head\.weight", r"lm_head.weight"),
    (r"layers\.(\d+)\.attention_norm\.weight", r"model.layers.\1.input_layernorm.weight"),
    (r"layers\.(\d+)\.attention\.([qkvo]_proj)\.weight", r"model.layers.\1.self_attn.\2.weight"),
    (r"layers\.(\d+)\.feed_forward\.((?:gate|up|down)_proj)\.weight", r"model.layers.\1.mlp.\2.weight"),
)
# Where there is no norm after attention, that is what the norm before the feed-forward is called.
HF_FEED_FORWARD_NORM = (
    r"layers\.(\d+)\.feed_forward_norm\.weight",
    r"model.layers.\1.post_attention_layernorm.weight",
)
HF_QK_NORM = (r"layers\.(\d+)\.attention\.([qk]_norm)\.weight", r"model.layers.\1.self_attn.\2.weight")


def renamed(name: str, names: Iterable[tuple[str, str]], family: str) -> str:
    """`name` by the first of the patterns in `names` that matches all of it. Raises ConfigError if none does."""
    for pattern, replacement in names:
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    raise ConfigError(f"{family} checkpoints have no counterpart of the parameter {name!r}")


def nothing_left_out(name: str) -> bool:
    """`hf_left_out` of a family whose checkpoints hold nothing but what is here."""
    return False


def equal_layers_to_hf(config: Decoder.Config) -> dict[str, Any]:
    """What the `config.json` of all families of equal layers says but of their feed-forwards; token ids are null until
    the caller sets them."""
    layer, rotary = config.layers[0], config.rotary
    values = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": layer.attention.num_heads,
        "num_key_value_heads": layer.attention.num_kv_heads,
        "head_dim": layer.attention.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
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


def equal_layers_from_hf(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `equal_layers_config` but `feed_forward` and `qk_norm`; reads layouts of transformers 4 and 5.

    Raises ConfigError for rotary scaling of another kind, and KeyError for a missing key.
    """
    num_heads, dim = values["num_attention_heads"], values["hidden_size"]
    theta, scaling = rotary_from_hf(values)
    return {
        "vocab_size": values["vocab_size"],
        "dim": dim,
        "num_layers": values["num_hidden_layers"],
        "num_heads": num_heads,
        "num_kv_heads": values.get("num_key_value_heads") or num_heads,
        "head_dim": values.get("head_dim") or dim // num_heads,
        "eps": values["rms_norm_eps"],
        "theta": theta,
        "max_sequence_length": values["max_position_embeddings"],
        "scaling": scaling,
        "tie_embeddings": values.get("tie_word_embeddings", False),
    }


def rotary_from_hf(values: Mapping[str, Any]) -> tuple[float, Llama3Scaling | None]:
    """theta and scaling. Raises as `equal_layers_from_hf` does."""
    # transformers 5 writes one `rope_parameters`; 4 wrote `rope_theta` beside `rope_scaling`.
    rope = values.get("rope_parameters") or {"rope_theta": values["rope_theta"], **(values.get("rope_scaling") or {})}
    theta, kind = float(rope["rope_theta"]), rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ConfigError(f"config.json: rope_type is {kind!r}; this package knows 'default' and 'llama3'")
    return theta, Llama3Scaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_position=rope["original_max_position_embeddings"],
    )


def require(values: Mapping[str, Any], required: Mapping[str, Any], family: str) -> None:
    """Raises ConfigError where `values` says something else than `required`."""
    for key, wanted in required.items():
        if (found := values.get(key, wanted)) != wanted:
            raise ConfigError(f"config.json: {key} is {found!r}; this package's {family} needs {wanted!r}")


@contextmanager
def missing_keys_named() -> Iterator[None]:
    """While this is open, a KeyError is a ConfigError that says which key of `config.json` is missing."""
    try:
        yield
    except KeyError as error:
        raise ConfigError(f"config.json: the key {error.args[0]!r} is missing") from error


def check_expressible(config: Decoder.Config, read_back: Decoder.Config, family: str) -> None:
    """See that what was written of `config` says all that decides what the model computes.

    Raises ConfigError with the first thing in which `read_back`, read from what was written, is something else.
    """
    meant, said = _computed(config), _computed(read_back)
    for path in sorted(meant.keys() | said.keys()):
        if meant.get(path) != said.get(path):
            raise ConfigError(
                f"the config.json of a {family} cannot say that {path} is {meant.get(path)!r} in this model; it would "
                f"be {said.get(path)!r}"
            )


# How weights start, which no checkpoint depends on.
_INITIALIZATION = {"embedding_std", "residual_init", "narrow_up_init", "std"}
# Of the nodes that can be replaced, what they compute; their other fields say how.
_INNER = {field.name for node in (CoreAttention, LabelLogits) for field in fields(node)}


def _computed(config: Decoder.Config) -> dict[str, Any]:
    """Path -> value of what decides what the model computes."""
    found = {}
    for path, value in flatten(config).items():
        parent, _, name = path.rpartition(".")
        if name not in _INITIALIZATION and (not parent.endswith(".inner") or name in _INNER):
            found[path] = value
    return found
