"""Rules by operator and module, on a layer of a Llama."""

from __future__ import annotations

import pytest
from graph.small_joint import between_halves_of_llama
from torch import fx

from wholestep.errors import ConfigError
from wholestep.graph.fates import Fate
from wholestep.graph.intermediates import Intermediates
from wholestep.graph.policies import offload_layer_inputs, recompute_all, save_attention
from wholestep.graph.rules import by_rules


@pytest.fixture(scope="module")
def between() -> Intermediates:
    return between_halves_of_llama()


def decided(between: Intermediates, *rules: str, otherwise=recompute_all) -> dict[str, list[str]]:
    """For each fate, `operator@module` of the nodes that have it."""
    policy = by_rules(rules, otherwise)
    fates: dict[str, list[str]] = {fate.value: [] for fate in Fate}
    for node in (*between.inputs, *between.candidates):
        fates[policy(node).value].append(name(node))
    policy.check_used()
    return fates


def name(node: fx.Node) -> str:
    return "input" if node.op == "placeholder" else f"{node.target.overloadpacket.__name__}@{node.meta['module']}"


@pytest.mark.parametrize(
    "module",
    ["layers.0.attention.o_proj", "layers.*.attention.o_proj", "attention.o_proj", "*.o_proj", "o_proj", "o_*"],
)
def test_a_module_is_named_by_its_path_or_the_end_of_it(between, module: str) -> None:
    assert decided(between, f"mm@{module}=save")["save"] == ["input", "mm@layers.0.attention.o_proj"]


def test_a_module_is_not_those_in_it(between) -> None:
    here = decided(between, "*@attention=save")["save"]
    assert {each.partition("@")[2] for each in here} == {"", "layers.0.attention"}
    below = decided(between, "*@attention.*=save")["save"]
    assert {each.partition("@")[2].rpartition(".")[2] for each in below} == {
        "", "q_proj", "k_proj", "v_proj", "inner", "o_proj"
    }  # fmt: skip


def test_operators(between) -> None:
    assert decided(between, "softmax@*=offload")["offload"] == ["_softmax@layers.0.attention.inner"]
    assert {each.partition("@")[0] for each in decided(between, "*mm@*=save")["save"]} == {"input", "mm", "bmm"}


def test_the_first_rule_that_matches_decides(between) -> None:
    fates = decided(between, "mm@*.o_proj=recompute", "mm@attention.*=offload", "mm@*=save")
    assert fates["offload"] == [f"mm@layers.0.attention.{each}_proj" for each in "qkv"]
    assert fates["save"] == ["input", "mm@layers.0.feed_forward.gate_proj", "mm@layers.0.feed_forward.up_proj"]
    assert "mm@layers.0.attention.o_proj" in fates["recompute"]


def test_the_layers_inputs(between) -> None:
    assert decided(between, "input@*=offload")["offload"] == ["input"]
    assert decided(between, "*@*=recompute")["save"] == ["input"]
    assert decided(between, "mm@*.o_proj=save", otherwise=offload_layer_inputs)["offload"] == ["input"]


@pytest.mark.parametrize(
    "rule", ["", "mm", "mm=save", "mm@o_proj", "mm@=save", "@o_proj=save", "mm@o_proj=", "mm@o_proj=saved"]
)
def test_what_is_no_rule_is_an_error(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"OPERATOR@MODULE=FATE") as error:
        by_rules(["mm@*=save", rule], recompute_all)
    assert repr(rule) in str(error.value)


@pytest.mark.parametrize("rule", ["mm@*.out_proj=save", "conv@*=save", "mm@down_proj=save", "bmm@inner=offload"])
def test_a_rule_that_decides_nothing_is_an_error(between, rule: str) -> None:
    """There is no such module, no such operator; no gradient needs the value; the rule before has decided."""
    with pytest.raises(ConfigError, match="decides nothing") as error:
        decided(between, "bmm@*=save", rule)
    assert repr(rule) in str(error.value)


def test_a_loop_is_made_by_rules() -> None:
    rules = by_rules(["mm@o_proj=offload", "*@attention.inner=save"], recompute_all)
    between_halves_of_llama(rules)
    rules.check_used()


def test_save_attention_saves_what_leaves_the_core_and_nothing_else(between) -> None:
    saved = [name(node) for node in (*between.inputs, *between.candidates) if save_attention(node) is Fate.SAVE]
    assert saved == ["input", "where@layers.0.attention.inner"]
