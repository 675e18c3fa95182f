"""Llama 3's checkpoints: layouts, and what is refused. `test_families.py` has what all families are tested for."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from models.families import VOCABULARY, hf_logits_of, logits_of, randomize, tiny_llama3
from transformers import LlamaConfig, LlamaForCausalLM

from wholestep.config.override import replace
from wholestep.errors import ConfigError
from wholestep.models import llama3


def test_unscaled_rotary_equals_transformers() -> None:
    config = replace(tiny_llama3(False), "rotary.scaling", None)
    ours, theirs = config.build(), LlamaForCausalLM(LlamaConfig(**llama3.hf_config(config)))
    randomize(theirs)
    assert llama3.from_hf_config(theirs.config.to_dict()) == config
    parameters = dict(theirs.named_parameters())
    ours.load_state_dict({name: parameters[llama3.hf_names(name, config)[0]] for name, _ in ours.named_parameters()})
    tokens = torch.randint(VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(logits_of(ours, tokens), hf_logits_of(theirs, tokens), rtol=0, atol=1e-4)


def test_layers_rotate() -> None:
    with pytest.raises(ConfigError, match=r"cannot say that layers.1.attention.rotary is False"):
        llama3.hf_config(replace(tiny_llama3(False), "layers.1.attention.rotary", False))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ConfigError, match="needs a width that its heads divide; this model's are 32 and 6"):
        llama3.hf_config(replace(tiny_llama3(False), "layers.*.attention.num_heads", 6))


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
