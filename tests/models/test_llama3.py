"""Llama 3's published sizes, and its checkpoints against transformers' own implementation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from wholestep.checkpoint.huggingface import Reader, write
from wholestep.config.override import replace
from wholestep.errors import ConfigError
from wholestep.models import llama3
from wholestep.models.decoder import Decoder
from wholestep.models.layers.rotary import Llama3Scaling

PUBLISHED = {
    llama3.llama3_1b_config: 1_235_814_400,
    llama3.llama3_3b_config: 3_212_749_824,
    llama3.llama3_8b_config: 8_030_261_248,
    llama3.llama3_70b_config: 70_553_706_496,
    llama3.llama3_405b_config: 405_853_388_800,
}

TOKENS = torch.randint(96, (2, 40), generator=torch.Generator().manual_seed(0))


def tiny_config(*, tie_embeddings: bool) -> Decoder.Config:
    # So short an original context that the 40 positions meet kept, interpolated and stretched frequencies.
    scaling = Llama3Scaling(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=16)
    return llama3.llama3_config(
        vocab_size=96,
        dim=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        hidden_dim=64,
        theta=100.0,
        max_sequence_length=64,
        scaling=scaling,
        tie_embeddings=tie_embeddings,
    )


def logits_of(model: Decoder) -> torch.Tensor:
    positions = torch.arange(TOKENS.shape[1]).expand_as(TOKENS)
    with torch.no_grad():
        return model(TOKENS, positions, torch.ones_like(TOKENS))


def hf_logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits


@pytest.mark.parametrize("config_of", PUBLISHED, ids=lambda config_of: config_of.__name__)
def test_published_sizes(config_of: Callable[[], Decoder.Config]) -> None:
    config = config_of()
    with torch.device("meta"):
        model = config.build()
    assert config.num_parameters() == sum(parameter.numel() for parameter in model.parameters())
    assert config.num_parameters() == PUBLISHED[config_of]
    assert llama3.from_hf_config(llama3.hf_config(config)) == config


def test_debug_config_is_small() -> None:
    assert llama3.llama3_debug_config().num_parameters() < 10_000_000


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_transformers_loads_what_we_write(tmp_path: Path, tie_embeddings: bool) -> None:
    config = tiny_config(tie_embeddings=tie_embeddings)
    torch.manual_seed(1)
    ours = config.build()
    ours.init_weights()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(5)
    tensors = {llama3.hf_name(name): parameter for name, parameter in ours.named_parameters()}
    write(tmp_path / "model", tensors, tensors.items(), llama3.hf_config(config), max_shard_bytes=20_000)

    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert type(theirs) is LlamaForCausalLM
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(logits_of(ours), hf_logits_of(theirs), rtol=0, atol=1e-4)


@pytest.mark.parametrize("tie_embeddings", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_we_load_what_transformers_writes(tmp_path: Path, tie_embeddings: bool, scaled: bool) -> None:
    config = tiny_config(tie_embeddings=tie_embeddings)
    if not scaled:
        config = replace(config, "rotary.scaling", None)
    torch.manual_seed(1)
    theirs = LlamaForCausalLM(LlamaConfig(**llama3.hf_config(config)))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(5)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")

    reader = Reader(tmp_path)
    loaded_config = llama3.from_hf_config(reader.config)
    assert loaded_config == config
    ours = loaded_config.build()
    names = {name: llama3.hf_name(name) for name, _ in ours.named_parameters()}
    reader.require({names[name]: parameter for name, parameter in ours.named_parameters()})
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(torch.from_numpy(reader.read(names[name])))
    torch.testing.assert_close(logits_of(ours), hf_logits_of(theirs), rtol=0, atol=1e-4)


def test_hf_names_are_transformers_own() -> None:
    config = tiny_config(tie_embeddings=False)
    with torch.device("meta"):
        ours, theirs = config.build(), LlamaForCausalLM(LlamaConfig(**llama3.hf_config(config)))
    assert {llama3.hf_name(name): parameter.shape for name, parameter in ours.named_parameters()} == {
        name: parameter.shape for name, parameter in theirs.named_parameters()
    }


def test_hf_name_refuses_an_unknown_parameter() -> None:
    with pytest.raises(ConfigError, match=r"no counterpart of the parameter 'layers.0.attention.q_norm.weight'"):
        llama3.hf_name("layers.0.attention.q_norm.weight")


def test_hf_config_refuses_layers_that_differ() -> None:
    config = replace(tiny_config(tie_embeddings=False), "layers.1.feed_forward.hidden_dim", 32)
    with pytest.raises(ConfigError, match="equal layers"):
        llama3.hf_config(config)


def test_from_hf_config_reads_the_published_layout() -> None:
    values = json.loads("""{
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 128256
    }""")
    assert llama3.from_hf_config(values) == llama3.llama3_8b_config()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3"}, "model_type is 'qwen3'; this package's Llama needs 'llama'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type is 'linear'"),
        ({"vocab_size": ...}, "the key 'vocab_size' is missing"),
        ({"rope_theta": ...}, "the key 'rope_theta' is missing"),
    ],
)
def test_from_hf_config_refuses(changes: dict[str, Any], message: str) -> None:
    values = {**llama3.hf_config(llama3.llama3_8b_config()), **changes}
    with pytest.raises(ConfigError, match=message):
        llama3.from_hf_config({key: value for key, value in values.items() if value is not ...})
