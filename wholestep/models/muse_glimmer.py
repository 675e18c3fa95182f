"""Muse Glimmer's text decoder (Meta 2026): published dimensions, and the layout of its Hugging Face checkpoints.

The definition is that of torchtitan 0.3.0 (`models/muse_glimmer`) and of transformers (`models/muse_glimmer`), numbers
those of the released `config.json`. The vision tower, its adapter and its projection are not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wholestep.errors import ConfigError
from wholestep.models.decoder import Decoder, DecoderLayer
from wholestep.models.families import (
    HF_NAMES,
    check_expressible,
    equal_layers_from_hf,
    equal_layers_to_hf,
    missing_keys_named,
    renamed,
    require,
)
from wholestep.models.layers.attention import Attention, DotProductAttention
from wholestep.models.layers.feed_forward import FeedForward
from wholestep.models.layers.head import Head, WholeLogits
from wholestep.models.layers.norm import RMSNorm
from wholestep.models.layers.rotary import RotaryEmbedding


def muse_glimmer_config(
    *,
    vocab_size: int = 202048,
    dim: int,
    num_heads: int,
    num_kv_heads: int = 2,
    head_dim: int = 128,
    hidden_dim: int,
    layers: Sequence[tuple[int | None, bool]],
    query_scale: float = 3.87,
    output_multiplier: float,
    output_soft_cap: float = 20.0,
    eps: float = 1e-5,
    post_eps: float = 1e-8,
    theta: float = 500000.0,
    max_sequence_length: int = 131072,
) -> Decoder.Config:
    """A decoder with Muse Glimmer's parts; the defaults are the published size's.

    Args:
        layers: of each, the window of its attention, None if it is global (see `CoreAttention.window`), and whether
            queries and keys are rotated.
        query_scale: of normalized queries, beside the usual `head_dim**-0.5`.
        output_multiplier: of logits, before they are capped.
        post_eps: of the norms on what is added to the residual stream.
    """
    norm, post_norm = RMSNorm.Config(eps=eps, center=1.0), RMSNorm.Config(eps=post_eps, center=1.0)
    unit_norm = RMSNorm.Config(eps=eps, affine=False)
    configs = tuple(
        DecoderLayer.Config(
            attention_norm=norm,
            attention=Attention.Config(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                inner=DotProductAttention.Config(window=window, scale=query_scale * head_dim**-0.5),
                qk_norm=unit_norm,
                rotary=rotates,
                output_gate=True,
            ),
            post_attention_norm=post_norm,
            feed_forward_norm=norm,
            feed_forward=FeedForward.Config(hidden_dim=hidden_dim, narrow_up_init=True),
            post_feed_forward_norm=post_norm,
        )
        for window, rotates in layers
    )
    return Decoder.Config(
        vocab_size=vocab_size,
        dim=dim,
        layers=configs,
        rotary=RotaryEmbedding.Config(theta=theta, max_sequence_length=max_sequence_length),
        # So the logits of an untrained model are all 0: its gain is the weight, and that starts at 0.
        norm=RMSNorm.Config(eps=eps, center=0.0),
        embedding_norm=unit_norm,
        lm_head=Head.Config(
            inner=WholeLogits.Config(multiplier=output_multiplier, soft_cap=output_soft_cap), std=dim**-0.5
        ),
        embedding_std=1.0,
        residual_init="by_depth",
    )


def pattern(num_layers: int, window: int) -> list[tuple[int | None, bool]]:
    """`layers` as published: every fourth, counted back from the last, sees all tokens before it and knows no
    positions; the others see `window` tokens."""
    return [(window, True) if (num_layers - 1 - i) % 4 else (None, False) for i in range(num_layers)]


def muse_glimmer_debug_config(*, vocab_size: int = 4096) -> Decoder.Config:
    """About 5 million parameters, to train on two CPU cores. The pattern of four layers twice, its window shorter than
    a row."""
    return muse_glimmer_config(
        vocab_size=vocab_size,
        dim=192,
        num_heads=6,
        head_dim=32,
        hidden_dim=576,
        layers=pattern(num_layers=8, window=64),
        output_multiplier=1.0,
        max_sequence_length=2048,
    )


def muse_glimmer_30b_config() -> Decoder.Config:
    """Muse Glimmer 30B, text only."""
    return muse_glimmer_config(
        dim=6656,
        num_heads=32,
        hidden_dim=19968,
        layers=pattern(num_layers=52, window=2048),
        output_multiplier=0.19611613513818404,  # (6656 / 256)**-0.5
    )


_HF_NAMES = (
    *HF_NAMES,
    (r"layers\.(\d+)\.attention\.gate_proj\.weight", r"model.layers.\1.self_attn.gate_proj.weight"),
    (r"layers\.(\d+)\.post_attention_norm\.weight", r"model.layers.\1.post_attention_layernorm.weight"),
    (r"layers\.(\d+)\.feed_forward_norm\.weight", r"model.layers.\1.pre_feedforward_layernorm.weight"),
    (r"layers\.(\d+)\.post_feed_forward_norm\.weight", r"model.layers.\1.post_feedforward_layernorm.weight"),
)


def hf_names(name: str, config: Decoder.Config) -> tuple[str, ...]:
    """The name in a Hugging Face Muse Glimmer checkpoint of the parameter that `Decoder` calls `name`.

    Shapes and layouts are equal on both sides. Raises ConfigError for a name that the family does not have.
    """
    inside = renamed(name, _HF_NAMES, "Muse Glimmer")
    prefix = "model."
    return (f"{prefix}language_model.{inside.removeprefix(prefix)}" if inside.startswith(prefix) else inside,)


def hf_left_out(name: str) -> bool:
    """Whether the tensor called so in a checkpoint is of the vision tower, its adapter or its projection."""
    return name.startswith("model.vision_")


# A vision tower of no layers, as small as it can be: transformers knows Muse Glimmer with one only.
_NO_VISION = {
    "vision_config": {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 0,
        "num_attention_heads": 1,
        "patch_size": 1,
        "pos_emb_height": 1,
        "pos_emb_width": 1,
        "max_position_embeddings": 1,
        "merge_size": 1,
    },
    "out_hidden_size": 8,
    "projector_hidden_size": 8,
}


def hf_config(config: Decoder.Config) -> dict[str, Any]:
    """The `config.json` of a `MuseGlimmerForConditionalGeneration` that computes of text what `config` builds.

    That class (`AutoModelForImageTextToText`) is the only one with a head that transformers has for the family. What
    it needs for images is cut down to next to nothing here; a checkpoint holds no weights of it, transformers draws
    them, and what it makes of images is noise. Token ids are the tokenizer's to say: `bos_token_id` and `eos_token_id`
    are null until the caller sets them. Raises ConfigError for what that format cannot say.
    """
    layer, logits = config.layers[0], config.lm_head.inner
    windows = [each.attention.inner.window for each in config.layers]
    post_norm, scale = layer.post_attention_norm, layer.attention.inner.scale
    if post_norm is None or scale is None:
        raise ConfigError("a Muse Glimmer has norms after attention and sets the scale of attention; this one does not")
    text = equal_layers_to_hf(config)
    del text["rope_scaling"]
    text |= {
        "intermediate_size": layer.feed_forward.hidden_dim,
        "model_type": "muse_glimmer_text",
        "hidden_activation": text.pop("hidden_act"),
        "rope_parameters": {"rope_type": "default", "rope_theta": text.pop("rope_theta")},
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "layer_rope_theta": [config.rotary.theta if each.attention.rotary else 0 for each in config.layers],
        "sliding_window": next((window for window in windows if window is not None), None),
        # Rounded, so that reading it back gives the very scale that a factor of few digits gave.
        "qk_scale_factor": round(scale / layer.attention.head_dim**-0.5, 12),
        "post_norm_eps": post_norm.eps,
        "output_multiplier": logits.multiplier,
        "final_logit_softcapping": logits.soft_cap,
    }
    values = {
        "architectures": ["MuseGlimmerForConditionalGeneration"],
        "model_type": "muse_glimmer",
        "text_config": text,
        "tie_word_embeddings": config.tie_embeddings,
        **_NO_VISION,
    }
    check_expressible(config, from_hf_config(values), "Muse Glimmer")
    return values


def from_hf_config(values: Mapping[str, Any]) -> Decoder.Config:
    """The text decoder that a Muse Glimmer's `config.json` describes; what it says of vision is left out.

    Raises ConfigError for another model type, a missing key, or a variant that `Decoder` does not compute.
    """
    require(values, {"model_type": "muse_glimmer", "tie_word_embeddings": False}, "Muse Glimmer")
    with missing_keys_named():
        text = values["text_config"]
        required = {
            "model_type": "muse_glimmer_text",
            "hidden_activation": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
        }
        require(text, required, "Muse Glimmer")
        shared = equal_layers_from_hf(text)
        if shared.pop("scaling") is not None:
            raise ConfigError("config.json: rope_parameters are scaled; this package's Muse Glimmer scales none")
        sizes = {key: shared[key] for key in shared if key not in ("num_layers", "tie_embeddings")}
        windows = [_window(kind, text) for kind in text["layer_types"]]
        rotary = [_rotates(theta, shared["theta"]) for theta in text["layer_rope_theta"]]
        if not len(windows) == len(rotary) == shared["num_layers"]:
            raise ConfigError("config.json: layer_types and layer_rope_theta need an entry for each layer")
        return muse_glimmer_config(
            **sizes,
            hidden_dim=text["intermediate_size"],
            layers=list(zip(windows, rotary, strict=True)),
            query_scale=text["qk_scale_factor"],
            output_multiplier=text["output_multiplier"],
            output_soft_cap=text["final_logit_softcapping"],
            post_eps=text["post_norm_eps"],
        )


def _window(kind: str, text: Mapping[str, Any]) -> int | None:
    windows = {"full_attention": None, "sliding_attention": text["sliding_window"]}
    if kind not in windows:
        raise ConfigError(f"config.json: a layer's type is {kind!r}; this package knows {', '.join(windows)}")
    return windows[kind]


def _rotates(theta: float, shared: float) -> bool:
    if theta not in (0, shared):
        raise ConfigError(f"config.json: a layer's RoPE theta is {theta}; it is that of all, {shared}, or 0 for none")
    return theta != 0
