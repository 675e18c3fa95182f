"""Muse Glimmer: that its windows and its layers without rotation matter, how it starts, and what is refused.
`test_families.py` has what all families are tested for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from models.families import VOCABULARY, hf_logits_of, logits_of, randomize, tiny_muse_glimmer
from transformers import MuseGlimmerConfig, MuseGlimmerForConditionalGeneration

from wholestep.config.override import replace
from wholestep.errors import ConfigError
from wholestep.models import muse_glimmer
from wholestep.models.decoder import Decoder

TOKENS = torch.randint(VOCABULARY, (2, 48), generator=torch.Generator().manual_seed(0))
# Documents shorter than a window, and several windows long.
POSITIONS = torch.stack(
    [torch.cat([torch.arange(length) for length in lengths]) for lengths in ((3, 20, 1, 24), (30, 18))]
)


def pair() -> tuple[Decoder, MuseGlimmerForConditionalGeneration]:
    """One model, ours and theirs."""
    config = tiny_muse_glimmer()
    theirs = MuseGlimmerForConditionalGeneration(MuseGlimmerConfig(**muse_glimmer.hf_config(config)))
    randomize(theirs)
    ours, parameters = config.build(), dict(theirs.named_parameters())
    names = {name: muse_glimmer.hf_names(name, config)[0] for name, _ in ours.named_parameters()}
    ours.load_state_dict({name: parameters[names[name]] for name in names})
    return ours, theirs


def test_packed_rows_equal_transformers() -> None:
    ours, theirs = pair()
    logits = logits_of(ours, TOKENS, POSITIONS)
    torch.testing.assert_close(logits, hf_logits_of(theirs, TOKENS, POSITIONS), rtol=0, atol=1e-4)
    assert logits.std() > 0.5


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("layers.0.attention.inner.window", 5),
        ("layers.3.attention.inner.window", 24),
        ("layers.3.attention.rotary", True),
        ("layers.*.attention.inner.scale", None),
        ("layers.*.post_attention_norm.center", 0.9),
        ("lm_head.inner.soft_cap", None),
        ("embedding_norm", None),
    ],
)
def test_every_part_matters(path: str, value: object) -> None:
    """So that the comparisons with transformers would fail without it."""
    ours, _ = pair()
    other = replace(ours.config, path, value).build()
    other.load_state_dict(ours.state_dict())
    assert (logits_of(ours, TOKENS, POSITIONS) - logits_of(other, TOKENS, POSITIONS)).abs().max() > 1e-3


def test_published_pattern() -> None:
    layers = muse_glimmer.muse_glimmer_30b_config().layers
    seen = [(layer.attention.inner.window, layer.attention.rotary) for layer in layers]
    assert seen == [(2048, True), (2048, True), (2048, True), (None, False)] * 13
    # torchtitan writes the scale of queries as 43.7840518911 / sqrt(head_dim).
    assert layers[0].attention.inner.scale == pytest.approx(43.7840518911 / 128, rel=1e-11)
    # Counted from the last layer where their number is no multiple of four.
    assert [window for window, _ in muse_glimmer.pattern(num_layers=6, window=7)] == [7, None, 7, 7, 7, None]


def test_any_layer_may_have_a_window_and_rotation() -> None:
    config = replace(tiny_muse_glimmer(), "layers.0.attention.rotary", False)
    config = replace(config, "layers.3.attention.inner.window", 4)
    assert muse_glimmer.from_hf_config(muse_glimmer.hf_config(config)) == config


def test_first_weights() -> None:
    config = replace(tiny_muse_glimmer(), "dim", 256)
    torch.manual_seed(0)
    model = config.build()
    model.init_weights()
    cut = math.sqrt(0.9733)  # a normal cut at three widths has this much of its variance
    for name, parameter in model.named_parameters():
        std = parameter.std().item()
        if "norm" in name:
            assert not parameter.any(), name
        elif name == "embed_tokens.weight":
            assert std == pytest.approx(1.0, rel=0.02)
        elif name == "lm_head.weight":
            assert std == pytest.approx(cut * 32**-0.5, rel=0.02)  # the width that the config was made for
        else:
            layer = int(name.split(".")[1])
            narrow = any(part in name for part in ("o_proj", "up_proj", "down_proj"))
            assert std == pytest.approx(cut * 0.02 / (math.sqrt(2 * (layer + 1)) if narrow else 1), rel=0.03), name
    assert not logits_of(model, TOKENS).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'; this package's Muse Glimmer needs 'muse_glimmer'"),
        ({"text_config": ...}, "the key 'text_config' is missing"),
        ({"text_config.hidden_activation": "gelu"}, "hidden_activation is 'gelu'"),
        ({"text_config.tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"text_config.layer_types": ["chunked_attention"] * 8}, "a layer's type is 'chunked_attention'"),
        ({"text_config.num_hidden_layers": 7}, "need an entry for each layer"),
        ({"text_config.layer_rope_theta": [7] * 8}, r"a layer's RoPE theta is 7; it is that of all, 100.0, or 0"),
        ({"text_config.qk_scale_factor": ...}, "the key 'qk_scale_factor' is missing"),
    ],
)
def test_from_hf_config_refuses(changes: dict[str, Any], message: str) -> None:
    values = muse_glimmer.hf_config(tiny_muse_glimmer())
    for path, value in changes.items():
        *parents, key = path.split(".")
        group = values[parents[0]] if parents else values
        group[key] = value
        if value is ...:
            del group[key]
    with pytest.raises(ConfigError, match=message):
        muse_glimmer.from_hf_config(values)


@pytest.mark.parametrize("path", ["layers.*.post_attention_norm", "layers.*.attention.inner.scale"])
def test_hf_config_refuses_what_it_cannot_say(path: str) -> None:
    with pytest.raises(ConfigError, match="has norms after attention and sets the scale"):
        muse_glimmer.hf_config(replace(tiny_muse_glimmer(), path, None))
