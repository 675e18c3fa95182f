"""Rewriting a config tree: what matches, what is refused, and what the refusals say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholestep.config.node import Node
from wholestep.config.override import apply, describe, flatten, replace, to_dict
from wholestep.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Core(Node):
    pass


@dataclass(frozen=True, kw_only=True)
class FlashCore(Node):
    block: int = 128


@dataclass(frozen=True, kw_only=True)
class Norm(Node):
    eps: float = 1e-5


@dataclass(frozen=True, kw_only=True)
class PlainNorm(Norm, name="plain"):
    pass


@dataclass(frozen=True, kw_only=True)
class FusedNorm(Norm, name="fused"):
    block: int = 64


@dataclass(frozen=True, kw_only=True)
class Layer(Node):
    width: int = 8
    inner: Node = Core()


@dataclass(frozen=True, kw_only=True)
class Block(Node):
    norm: Norm = PlainNorm(eps=1e-6)


@dataclass(frozen=True, kw_only=True)
class ConvolutionLayer(Node):
    kernel: int = 3


@dataclass(frozen=True, kw_only=True)
class Scaling(Node):
    factor: float


@dataclass(frozen=True, kw_only=True)
class Model(Node):
    dim: int = 16
    eps: float = 1e-5
    layers: tuple[Layer | ConvolutionLayer, ...] = (Layer(), Layer(), Layer())
    scaling: Scaling | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe(Node):
    model: Model = Model()
    name: str = "debug"
    mode: Literal["train", "eval"] = "train"
    tied: bool = False
    steps: int | None = None
    note: str | None = None
    mesh: tuple[int, ...] = (1, 1)
    betas: tuple[float, float] = (0.9, 0.95)


RECIPE = Recipe()


def changed(tree: Recipe) -> dict[str, Any]:
    before = flatten(RECIPE)
    return {path: value for path, value in flatten(tree).items() if before.get(path, ...) != value}


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("model.dim", 32, {"model.dim": 32}),
        ("model.eps", 1, {"model.eps": 1.0}),
        ("model.layers.1.width", 4, {"model.layers.1.width": 4}),
        ("model.layers.0-1.width", 4, {"model.layers.0.width": 4, "model.layers.1.width": 4}),
        ("model.layers.*.width", 4, {f"model.layers.{i}.width": 4 for i in range(3)}),
        ("model.layers.2.inner", FlashCore(), {"model.layers.2.inner.block": 128}),
        ("*.dim", 32, {"model.dim": 32}),
        ("model.scaling", Scaling(factor=2.0), {"model.scaling.factor": 2.0}),
        ("steps", 5, {"steps": 5}),
        ("mesh", [2, 4], {"mesh": (2, 4)}),
        ("mesh.1", 4, {"mesh": (1, 4)}),
        ("betas", (0, 1), {"betas": (0.0, 1.0)}),
        ("mode", "eval", {"mode": "eval"}),
    ],
)
def test_replace(path: str, value: Any, expected: dict[str, Any]) -> None:
    # repr, so that 1 is not 1.0
    assert repr(changed(replace(RECIPE, path, value))) == repr(expected)


def test_replace_keeps_first_elements() -> None:
    assert replace(RECIPE, "model.layers", 2).model.layers == RECIPE.model.layers[:2]
    assert apply(RECIPE, ["model.layers=1"]).model.layers == RECIPE.model.layers[:1]


def test_replace_leaves_parts_without_the_path_alone() -> None:
    mixed = replace(RECIPE, "model.layers.1", ConvolutionLayer())
    tree = replace(mixed, "model.layers.*.width", 4)
    assert tree.model.layers == (Layer(width=4), ConvolutionLayer(), Layer(width=4))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("modle.dim", 1, "'modle.dim' matches nothing: Recipe has no field 'modle'; did you mean 'model.dim'"),
        (
            "model.layers.*.iner",
            FlashCore(),
            "'model.layers.*.iner' matches nothing: model.layers.* has no field 'iner'; did you mean "
            "'model.layers.*.inner'",
        ),
        ("model.layers.3.inner", FlashCore(), "model.layers has 3 elements, counted from 0, and no '3'"),
        ("model.layers.1-5.inner", FlashCore(), "model.layers has 3 elements, counted from 0, and no '1-5'"),
        ("model.dim.x", 1, "'model.dim.x' matches nothing: model.dim is a value, nothing is inside it"),
        ("", 1, "'' matches nothing: Recipe has no field ''"),
        ("model.dim", "abc", "model.dim: expected int, got 'abc'"),
        ("model.dim", True, "model.dim: expected int, got True"),
        ("model.dim", 1.0, "model.dim: expected int, got 1.0"),
        ("model.eps", True, "model.eps: expected float, got True"),
        ("tied", 1, "tied: expected bool, got 1"),
        ("name", None, "name: expected str, got None"),
        ("steps", "x", "steps: expected int or None, got 'x'"),
        ("mode", "test", "mode: expected one of 'train', 'eval', got 'test'"),
        ("mesh", (1, "2"), "mesh: expected a tuple of int, got (1, '2')"),
        ("mesh.0", "2", "mesh: expected int, got '2'"),
        ("betas", (0.9,), "betas: expected a tuple (float, float), got (0.9,)"),
        ("model", Layer(), "model: expected Model, got Layer("),
        ("model.layers.0.inner", 3, "model.layers.0.inner: expected Node, got 3"),
        ("model.layers", 4, "model.layers: expected how many of its 3 elements to keep, at least 1, got 4"),
        ("model.layers", 0, "model.layers: expected how many of its 3 elements to keep, at least 1, got 0"),
    ],
)
def test_replace_refuses(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(RECIPE, path, value)
    assert message.replace("mesh:", f"{path}:") in str(caught.value)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("model.dim=1_024", {"model.dim": 1024}),
        ("model.eps=3e-4", {"model.eps": 3e-4}),
        ("tied=True", {"tied": True}),
        ("steps=7", {"steps": 7}),
        ("name=a=b", {"name": "a=b"}),
        ("note=none", {}),
        ("note=none of it", {"note": "none of it"}),
        ("mesh=2, 4", {"mesh": (2, 4)}),
        ("mesh=", {"mesh": ()}),
        ("betas=0.8,0.9", {"betas": (0.8, 0.9)}),
        ("mode=eval", {"mode": "eval"}),
        ("model.scaling=none", {}),
        ("model.layers.*.width=2", {f"model.layers.{i}.width": 2 for i in range(3)}),
    ],
)
def test_apply(assignment: str, expected: dict[str, Any]) -> None:
    assert changed(apply(RECIPE, [assignment])) == expected


def test_apply_goes_in_order() -> None:
    assert changed(apply(RECIPE, ["model.dim=1", "steps=2", "model.dim=3"])) == {"model.dim": 3, "steps": 2}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.dim", "'model.dim' is not an assignment: write path=value"),
        ("model.dim=abc", "model.dim: expected int, got 'abc'"),
        ("model.dim=none", "model.dim: expected int, got 'none'"),
        ("tied=1", "tied: expected bool, got '1'"),
        ("betas=1", "betas: expected a tuple (float, float), got '1'"),
        ("mode=test", "mode: expected one of 'train', 'eval', got 'test'"),
        ("model.layers=9", "model.layers: expected how many of its 3 elements to keep, at least 1, got 9"),
        (
            "model.layers=x",
            "model.layers: expected a tuple of Layer or ConvolutionLayer, or how many elements to keep, got 'x'",
        ),
        (
            "model=x",
            "model is a group (Model), not a value: set its keys instead: "
            "model.dim, model.eps, model.layers, model.scaling",
        ),
        ("model.layers.0.inner=flash", "model.layers.0.inner is a group (Core), not a value: it has no keys to set"),
        ("model.scaling=2", "model.scaling: expected Scaling or None, got '2'; a group cannot be written as text"),
    ],
)
def test_apply_refuses(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(RECIPE, [assignment])
    assert message in str(caught.value)


def test_a_node_is_put_by_name_and_takes_over_what_the_slot_has_fields_for() -> None:
    assert apply(Block(), ["norm=fused"]).norm == FusedNorm(eps=1e-6)
    assert apply(Block(), ["norm=fused", "norm.block=8", "norm=plain"]).norm == PlainNorm(eps=1e-6)
    with pytest.raises(
        ConfigError, match=r"in its place by name \(fused, plain\); did you mean 'fused'\?, or set its keys.*norm.eps"
    ):
        apply(Block(), ["norm=fussed"])


layers = st.builds(Layer, width=st.integers(), inner=st.one_of(st.just(Core()), st.builds(FlashCore)))
models = st.builds(
    Model,
    dim=st.integers(),
    eps=st.floats(allow_nan=False),
    layers=st.lists(st.one_of(layers, st.builds(ConvolutionLayer, kernel=st.integers())), min_size=1).map(tuple),
    scaling=st.one_of(st.none(), st.builds(Scaling, factor=st.floats(allow_nan=False))),
)
recipes = st.builds(
    Recipe,
    model=models,
    name=st.text(),
    mode=st.sampled_from(["train", "eval"]),
    tied=st.booleans(),
    steps=st.one_of(st.none(), st.integers()),
    mesh=st.lists(st.integers()).map(tuple),
)


@given(recipes)
def test_every_flattened_path_takes_its_own_value(tree: Recipe) -> None:
    for path, value in flatten(tree).items():
        assert replace(tree, path, value) == tree


@given(recipes, recipes)
def test_values_of_a_tree_carry_it_over_to_another_of_its_shape(source: Recipe, other: Recipe) -> None:
    tree = replace(other, "model.layers", source.model.layers)
    tree = replace(tree, "model.scaling", source.model.scaling)
    for path, value in flatten(source).items():
        tree = replace(tree, path, value)
    assert tree == source


def test_to_dict() -> None:
    tree = replace(replace(RECIPE, "model.layers", 1), "model.scaling", Scaling(factor=2.0))
    assert to_dict(tree.model) == {
        "node": "Model",
        "dim": 16,
        "eps": 1e-5,
        "layers": [{"node": "Layer", "width": 8, "inner": {"node": "Core"}}],
        "scaling": {"node": "Scaling", "factor": 2.0},
    }
    assert to_dict(RECIPE)["mesh"] == [1, 1]


def test_describe_shows_a_run_once() -> None:
    tree = replace(RECIPE, "model.layers.2", ConvolutionLayer())
    assert describe(tree.model) == "\n".join(
        [
            "Model",
            "  dim: 16",
            "  eps: 1e-05",
            "  layers.0-1: Layer",
            "    width: 8",
            "    inner: Core",
            "  layers.2: ConvolutionLayer",
            "    kernel: 3",
            "  scaling: None",
        ]
    )
