"""Qwen3 MoE's checkpoints: layouts, names, and what is refused. `test_families.py` has what all families are tested
for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from models.families import tiny_qwen3_moe

from wholestep.config.override import replace
from wholestep.errors import ConfigError
from wholestep.models import qwen3_moe
from wholestep.models.layers.feed_forward import FeedForward


def test_from_hf_config_reads_the_published_layout() -> None:
    values = json.loads("""{
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
        "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
        "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 151936
    }""")
    config = qwen3_moe.qwen3_30b_a3b_config()
    assert qwen3_moe.from_hf_config(values) == config
    written = qwen3_moe.hf_config(config)
    assert {key: value for key, value in values.items() if key in written} == {
        **written,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3"}, "model_type is 'qwen3'; this package's Qwen3 MoE needs 'qwen3_moe'"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"moe_intermediate_size": ...}, "the key 'moe_intermediate_size' is missing"),
        ({"num_experts": ...}, "the key 'num_local_experts' is missing"),
    ],
)
def test_from_hf_config_refuses(changes: dict[str, Any], message: str) -> None:
    values = {**qwen3_moe.hf_config(tiny_qwen3_moe(False)), **changes}
    with pytest.raises(ConfigError, match=message):
        qwen3_moe.from_hf_config({key: value for key, value in values.items() if value is not ...})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("layers.*.feed_forward.balance", "bias", "cannot say that layers.0.feed_forward.balance is 'bias'"),
        ("layers.*.feed_forward.balance", "none", "cannot say that layers.0.feed_forward.balance is 'none'"),
        ("layers.1.feed_forward.num_chosen", 1, "cannot say that layers.1.feed_forward.num_chosen is 1"),
        ("layers.1.feed_forward", FeedForward.Config(hidden_dim=12), "cannot say that layers.1.feed_forward"),
        ("layers.*.feed_forward", FeedForward.Config(hidden_dim=12), "mixtures of experts for feed-forwards"),
    ],
)
def test_hf_config_refuses_what_it_cannot_say(path: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        qwen3_moe.hf_config(replace(tiny_qwen3_moe(False), path, value))


@pytest.mark.parametrize(
    ("path", "value"), [("layers.*.feed_forward.normalize_scores", False), ("layers.*.feed_forward.balance_rate", 0.25)]
)
def test_hf_config_says_how_experts_are_chosen_and_balanced(path: str, value: object) -> None:
    config = replace(tiny_qwen3_moe(False), path, value)
    assert qwen3_moe.from_hf_config(qwen3_moe.hf_config(config)) == config


def test_hf_names() -> None:
    config = tiny_qwen3_moe(False)
    router, experts = "layers.1.feed_forward.router.weight", "layers.1.feed_forward.up_proj"
    assert qwen3_moe.hf_names(router, config) == ("model.layers.1.mlp.gate.weight",)
    assert qwen3_moe.hf_names(experts, config) == tuple(
        f"model.layers.1.mlp.experts.{i}.up_proj.weight" for i in range(5)
    )
