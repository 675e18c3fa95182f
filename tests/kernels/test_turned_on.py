"""Kernels of a recipe survive the model's replacement by the one of a checkpoint."""

from __future__ import annotations

import pytest

from wholestep.config.override import apply
from wholestep.kernels import turned_on
from wholestep.models.layers.attention import DotProductAttention
from wholestep.recipes.registry import find
from wholestep.train.description import Description

SPLASH = "model.layers.*.attention.inner=splash"


@pytest.mark.parametrize("name", ["llama3_debug", "muse_glimmer_debug"])
def test_what_is_on_in_all_layers(name: str) -> None:
    plain = apply(find(name).function(), ["model.layers.*.attention.inner=dot_product", "model.lm_head.inner=whole"])
    assert turned_on(plain) == ()
    assert turned_on(apply(plain, [SPLASH])) == (SPLASH,)
    assert turned_on(apply(plain, ["model.layers.0.attention.inner=splash"])) == ()
    assert turned_on(apply(plain, ["model.lm_head.inner=fused"])) == ("model.lm_head.inner=fused",)


def test_a_run_from_a_checkpoint_keeps_the_recipes_kernels() -> None:
    entry = find("qwen3_30b_a3b")
    recipe = entry.function()
    config = entry.family.hf_config(recipe.model)
    started = Description(recipe="qwen3_30b_a3b", huggingface=config).build()
    assert turned_on(started) == turned_on(recipe) != ()
    assert started.model == recipe.model
    overrides = ("model.layers.*.attention.inner=dot_product",)
    plain = Description(recipe="qwen3_30b_a3b", huggingface=config, overrides=overrides).build()
    assert {type(layer.attention.inner) for layer in plain.model.layers} == {DotProductAttention.Config}
