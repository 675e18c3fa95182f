"""Qwen3's checkpoints: layouts, and what is refused. `test_families.py` has what all families are tested for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wholestep.errors import ConfigError
from wholestep.models import qwen3


def test_from_hf_config_reads_the_published_layout() -> None:
    values = json.loads("""{
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
        "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 151936
    }""")
    assert qwen3.from_hf_config(values) == qwen3.qwen3_0_6b_config()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3_moe"}, "model_type is 'qwen3_moe'; this package's Qwen3 needs 'qwen3'"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"rms_norm_eps": ...}, "the key 'rms_norm_eps' is missing"),
    ],
)
def test_from_hf_config_refuses(changes: dict[str, Any], message: str) -> None:
    values = {**qwen3.hf_config(qwen3.qwen3_8b_config()), **changes}
    with pytest.raises(ConfigError, match=message):
        qwen3.from_hf_config({key: value for key, value in values.items() if value is not ...})
