"""Loops in place of layers: whatever code calls them in order, and an error for code that does not."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from torch import Tensor, fx, nn

from wholestep.errors import GraphError
from wholestep.graph.budget import Budget
from wholestep.graph.call import call
from wholestep.graph.capture import capture_train_step
from wholestep.graph.costs import Rates
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep
from wholestep.graph.policies import POLICIES
from wholestep.graph.scan import loop
from wholestep.graph.signature import Field
from wholestep.graph.step import StepGraph
from wholestep.parallel import Mesh, simple_fsdp, simulated_device_mesh


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x)) * scale


class Model(nn.Module):
    """Calls its blocks in the way that `style` says."""

    def __init__(self, style: str, depth: int) -> None:
        super().__init__()
        self.style = style
        blocks = [Block() for _ in range(depth)]
        self.blocks = (
            nn.ModuleDict({f"b{i}": b for i, b in enumerate(blocks)}) if style == "dict" else nn.ModuleList(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        scale, first = x.mean(-1, keepdim=True), x
        if self.style == "dict":
            for block in self.blocks.values():
                x = block(x, scale=scale)
        elif self.style == "skips":
            for block in self.blocks:
                x = block(x + first, scale)
        elif self.style == "own argument":
            for i, block in enumerate(self.blocks):
                x = block(x, scale * i)
        elif self.style == "stops early":
            for block in list(self.blocks)[:-1]:
                x = block(x, scale)
        elif self.style == "looks inside":
            states = []
            for block in self.blocks:
                x = block(x, scale)
                states.append(x)
            x = x + sum(states)
        elif self.style == "out of order":
            for block in reversed(self.blocks):
                x = block(x, scale)
        else:
            for i, block in enumerate(self.blocks[: len(self.blocks)]):
                x = block(x, scale) if i >= 0 else x
        return x


def capture(style: str | nn.Module, depth: int = 4, policy: str = "save_all", looped: bool = True) -> StepGraph:
    with torch.device("meta"):
        module = Model(style, depth) if isinstance(style, str) else style
    batch = {"x": Field((8, 6), torch.float32)}

    def objective(module: nn.Module, batch: dict[str, Tensor]):
        return module(batch["x"]).square().sum(), torch.ones(()) * 8, {}

    with simulated_device_mesh(Mesh(fsdp=2)) as mesh:
        simple_fsdp(module, mesh)
        how = Layers(Keep(POLICIES[policy]), looped)
        return capture_train_step(module, objective, AdamW(), batch, mesh, layers=how)


def loops(step: StepGraph) -> list[fx.Node]:
    return [node for node in step.module.graph.nodes if node.target is loop]


def operators(step: StepGraph, node: fx.Node) -> Counter[str]:
    body = getattr(step.module, node.args[0].target)
    return Counter(str(each.target) for each in body.graph.nodes if each.op == "call_function")


@pytest.mark.parametrize("style", ["list", "dict"])
def test_one_loop_forward_and_one_backward(style: str) -> None:
    forward, backward = loops(capture(style))
    assert "reverse" not in forward.kwargs and backward.kwargs["reverse"] is True


def test_the_graph_does_not_grow_with_depth() -> None:
    shallow, deep = capture("list", 2), capture("list", 12)
    assert len(shallow.module.graph.nodes) == len(deep.module.graph.nodes)
    assert len(shallow.inputs) == len(deep.inputs)
    (weight,) = [value for value in deep.inputs if value.kind == "parameter"]
    assert weight.shape == (12, 6, 6) and weight.members == tuple(f"blocks.{i}.linear.weight" for i in range(12))


@pytest.mark.parametrize(
    ("style", "message"),
    [
        ("skips", "argument 0 of blocks.1 is neither"),
        ("own argument", "argument 1 of blocks.1 is neither"),
        ("out of order", "blocks.3 is called where blocks.0 is expected"),
        ("looks inside", "what layers of blocks return is read"),
    ],
)
def test_layers_that_no_loop_can_stand_for_are_laid_out_and_a_note_says_why(style: str, message: str) -> None:
    step = capture(style)
    assert not loops(step) and {node.target for node in step.module.graph.nodes} >= {call}
    (note,) = step.notes
    assert re.search(message, note) and note.endswith("blocks is laid out, not looped")


def test_layers_that_are_not_called_have_no_gradient() -> None:
    with pytest.raises(GraphError, match=r"the loss does not depend on blocks\.3\.linear\.weight"):
        capture("stops early")


def test_layers_that_differ_are_named() -> None:
    with torch.device("meta"):
        module = Model("list", 5)
        module.blocks[2].linear = nn.Linear(6, 6, bias=True)
    step = capture(module)
    assert step.notes == ("blocks.2 is not like the layer before it: linear.bias is not None in both",) or step.notes
    assert len(loops(step)) == 4  # two stacks, forward and backward


def test_weights_are_gathered_again_and_never_kept() -> None:
    for policy in POLICIES:
        step = capture("list", policy=policy)
        forward, backward = loops(step)
        for node in (forward, backward):
            assert operators(step, node)["_c10d_functional.all_gather_into_tensor.default"] == 1, policy
        assert operators(step, backward)["_c10d_functional.reduce_scatter_tensor.default"] == 1


@pytest.mark.parametrize(
    ("policy", "kept", "products"), [("save_all", 3, 2), ("recompute_all", 1, 3), ("save_matmuls", 2, 2)]
)
def test_what_is_kept_and_what_is_computed_again(policy: str, kept: int, products: int) -> None:
    """Of `x + tanh(x @ w) * scale` the gradients need x, and tanh's result; from x @ w, or from nothing."""
    step = capture("list", policy=policy)
    forward, backward = loops(step)
    body = getattr(step.module, forward.args[0].target)
    assert len(body.graph.output_node().args[0]) - 1 <= kept
    assert operators(step, backward)["aten.mm.default"] == products


def test_offloaded_values_go_to_the_host_and_come_back() -> None:
    step = capture("list", policy="offload_layer_inputs")
    forward, backward = loops(step)
    assert sum("to_host" in name for name in operators(step, forward)) == 1
    assert sum("to_device" in name for name in operators(step, backward)) == 1


class Positioned(nn.Module):
    """Scales by where it stands, if it looks."""

    def __init__(self, index: int, looks: bool) -> None:
        super().__init__()
        self.layer_idx, self.looks = index, looks
        self.linear = nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x + self.linear(x) * scale * (self.layer_idx if self.looks else 1)


@pytest.mark.parametrize("looks", [True, False])
def test_a_layer_that_looks_where_it_stands_stands_for_no_other(looks: bool) -> None:
    with torch.device("meta"):
        module = Model("list", 4)
        module.blocks = nn.ModuleList(Positioned(i, looks) for i in range(4))
    looped = capture(module)
    assert len(loops(looped)) == (0 if looks else 2)
    assert any("depend on its layer_idx" in note for note in looped.notes) == looks
    with torch.device("meta"):
        module = Model("list", 4)
        module.blocks = nn.ModuleList(Positioned(i, looks) for i in range(4))
    called = capture(module, looped=False)
    forward = [node for node in called.module.graph.nodes if node.target is call and not node.meta["backward"]][:4]
    assert len({node.args[0].target for node in forward}) == (
        4 if looks else 2
    )  # the first one's input needs no gradient


class Unused(Block):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(6, 6)


@pytest.mark.parametrize("looped", [False, True])
def test_a_parameter_that_no_layer_uses_is_an_error(looped: bool) -> None:
    with torch.device("meta"):
        module = Model("list", 4)
        module.blocks = nn.ModuleList(Unused() for _ in range(4))
    with pytest.raises(GraphError, match=r"the loss does not depend on .*extra\.weight"):
        capture(module, looped=looped)


class PartlyFrozen(Model):
    def forward(self, x: Tensor) -> Tensor:
        scale = x.mean(-1, keepdim=True)
        with torch.no_grad():
            for block in self.blocks[:3]:
                x = block(x, scale)
        return self.blocks[3](x, scale)


def test_layers_without_gradients_are_not_trained() -> None:
    with torch.device("meta"):
        module = PartlyFrozen("list", 4)
    with pytest.raises(GraphError, match=r"the loss does not depend on blocks\.0\.linear\.weight"):
        capture(module)


@pytest.mark.parametrize("looped", [False, True])
def test_a_budget_is_for_all_layers_together(looped: bool) -> None:
    with torch.device("meta"):
        module = Model("list", 8)
    batch, limit = {"x": Field((8, 6), torch.float32)}, 1700

    def objective(module: nn.Module, batch: dict[str, Tensor]):
        return module(batch["x"]).square().sum(), torch.ones(()) * 8, {}

    with simulated_device_mesh(Mesh(fsdp=2)) as mesh:
        simple_fsdp(module, mesh)
        keep = Keep(Budget(limit, Rates(1e3, 1e12, 0.0)))  # arithmetic is dear
        step = capture_train_step(module, objective, AdamW(), batch, mesh, layers=Layers(keep, looped))
    forward = [n for n in step.module.graph.nodes if n.target in (call, loop) and "scope" in n.kwargs][
        : 1 if looped else 8
    ]
    outputs = 1
    saved = sum(v.numel() * v.element_size() for node in forward for v in node.meta["val"][outputs:])
    least = 4 * 6 * 4 * 8  # what enters the layers
    assert least < saved <= limit
