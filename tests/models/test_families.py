"""Every family: its published sizes, and its checkpoints against transformers' own implementation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from models.families import FAMILIES, VOCABULARY, Family, hf_logits_of, hf_tensors, logits_of, randomize

from wholestep.checkpoint.huggingface import Reader, write
from wholestep.config.override import replace
from wholestep.errors import ConfigError
from wholestep.models.decoder import Decoder

TOKENS = torch.randint(VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(0))

each_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
each_size = pytest.mark.parametrize(
    ("family", "config_of"),
    [(family, config_of) for family in FAMILIES for config_of in family.published],
    ids=lambda value: str(value) if isinstance(value, Family) else value.__name__,
)
each_tying = pytest.mark.parametrize(
    ("family", "tied"),
    [(family, tied) for family in FAMILIES for tied in ([False, True] if family.can_tie else [False])],
    ids=str,
)


@each_size
def test_published_sizes(family: Family, config_of: Callable[[], Decoder.Config]) -> None:
    config = config_of()
    with torch.device("meta"):
        model = config.build()
    assert config.num_parameters() == sum(parameter.numel() for parameter in model.parameters())
    assert config.num_parameters() == family.published[config_of]
    assert family.module.from_hf_config(family.module.hf_config(config)) == config


@each_family
def test_debug_config_is_small(family: Family) -> None:
    config = getattr(family.module, f"{family}_debug_config")
    assert 3_000_000 < config(vocab_size=2048).num_parameters() < config().num_parameters() < 6_000_000


@each_tying
def test_transformers_loads_what_we_write(tmp_path: Path, family: Family, tied: bool) -> None:
    config, module = family.tiny(tied), family.module
    ours = config.build()
    ours.init_weights()
    randomize(ours)
    tensors = hf_tensors(family, ours)
    values = {**module.hf_config(config), "bos_token_id": 1, "eos_token_id": 2}
    write(tmp_path / "model", tensors, tensors.items(), values, max_shard_bytes=20_000)

    theirs, report = family.auto_class.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert type(theirs) is family.model_class
    assert all(map(module.hf_left_out, report["missing_keys"]))
    assert not report["unexpected_keys"]
    torch.testing.assert_close(logits_of(ours, TOKENS), hf_logits_of(theirs, TOKENS), rtol=0, atol=1e-4)


@each_tying
def test_we_load_what_transformers_writes(tmp_path: Path, family: Family, tied: bool) -> None:
    config, module = family.tiny(tied), family.module
    theirs = family.model_class(family.config_class(**module.hf_config(config)))
    randomize(theirs)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")

    reader = Reader(tmp_path)
    loaded_config = module.from_hf_config(reader.config)
    assert loaded_config == config
    ours = loaded_config.build()
    tensors = hf_tensors(family, ours)
    reader.require(tensors, module.hf_left_out)
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(reader.read(name)))
    torch.testing.assert_close(logits_of(ours, TOKENS), hf_logits_of(theirs, TOKENS), rtol=0, atol=1e-4)


@each_family
def test_hf_names_refuses_an_unknown_parameter(family: Family) -> None:
    with pytest.raises(ConfigError, match=r"no counterpart of the parameter 'layers.0.attention.sinks'"):
        family.module.hf_names("layers.0.attention.sinks", family.tiny(False))


@each_family
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("layers.1.feed_forward.hidden_dim", 32),
        ("layers.1.attention_norm.eps", 0.5),
        ("layers.*.attention.inner.soft_cap", 5.0),
        ("layers.1.attention.inner.window", 3),
        ("norm.center", 0.5),
    ],
)
def test_hf_config_refuses_what_it_cannot_say(family: Family, path: str, value: object) -> None:
    config = replace(family.tiny(False), path, value)
    with pytest.raises(ConfigError, match=rf"cannot say that {path.replace('*', '0')} is {value}"):
        family.module.hf_config(config)


@each_family
def test_hf_config_says_nothing_of_how(family: Family) -> None:
    config = family.tiny(False)
    values = family.module.hf_config(config)
    how = {f"layers.*.feed_forward.{name}": value for name, value in family.how.items()}
    for path, value in {"embedding_std": 0.5, "lm_head.std": 0.5, **how}.items():
        config = replace(config, path, value)
    assert family.module.hf_config(config) == values
