"""Every pass: pure, and exact bit for bit; then what each one removes."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator

import pytest
import torch
from graph.small_step import WIDTH, Stack, batch_fields, capture, text_of, weighted_squares
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode

from wholestep.graph import capture as capture_module
from wholestep.graph.call import fence
from wholestep.graph.capture import capture_train_step
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep
from wholestep.graph.passes import EXACT, Pass, run_passes
from wholestep.graph.passes.dead_nodes import remove_dead_nodes
from wholestep.graph.passes.identities import remove_identities
from wholestep.graph.passes.loop_order import finish_before_loops
from wholestep.graph.passes.plain_products import fence_products
from wholestep.graph.policies import save_all
from wholestep.graph.scan import loop
from wholestep.graph.step import StepGraph, graphs
from wholestep.graph.trace import trace
from wholestep.parallel import Mesh, Policy, simple_fsdp, simulated_device_mesh

aten = torch.ops.aten


def raw_step(mesh: Mesh, microbatches: int = 1) -> StepGraph:
    """A step that no pass has touched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_module, "run_passes", lambda step: step)
        return capture(Stack(), mesh, rows=8, microbatches=microbatches, policy=Policy(reduce_dtype=torch.float32))


@pytest.fixture(params=[1, 4], ids=["one batch", "microbatches"])
def step(request: pytest.FixtureRequest) -> Iterator[StepGraph]:
    """A raw step for one device, and the process group that its collectives need when it is run."""
    raw = raw_step(Mesh(), request.param)
    with simulated_device_mesh(Mesh()):
        yield raw


def results(step: StepGraph) -> list[Tensor]:
    """One step in PyTorch, from random inputs."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.rand(value.shape, generator=generator) + 0.5 for value in step.inputs]
    return list(step.module(*inputs))


def nodes(step: StepGraph) -> list[fx.Node]:
    return [node for module in graphs(step.module) for node in module.graph.nodes]


@pytest.mark.parametrize("run", [*EXACT, run_passes], ids=lambda run: run.__name__)
def test_a_pass_is_pure_and_exact(run: Pass, step: StepGraph) -> None:
    before, expected = text_of(step), results(step)
    after = run(step)
    assert text_of(step) == before
    assert dataclasses.replace(after, module=step.module) == step
    assert len(nodes(after)) <= len(nodes(step))
    for value, result, want in zip(step.outputs, results(after), expected, strict=True):
        assert torch.equal(result, want) and torch.isfinite(result).all(), value.name
    for module in graphs(after.module):
        module.graph.lint()


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(fsdp=2), Mesh(replicate=2, fsdp=2)], ids=str)
def test_passes_leave_nothing_for_themselves(mesh: Mesh) -> None:
    once = run_passes(raw_step(mesh, microbatches=2))
    assert text_of(run_passes(once)) == text_of(once)


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (Mesh(), set()),
        (Mesh(fsdp=2), {"all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"}),
        (Mesh(replicate=2), {"all_reduce"}),
    ],
    ids=["one device", "shards", "replicas"],
)
def test_collectives_over_one_device_and_waits_go(mesh: Mesh, expected: set[str]) -> None:
    left = {str(node.target).split(".")[1] for node in nodes(run_passes(raw_step(mesh))) if "c10d" in str(node.target)}
    assert left == expected


def graph_of(function, *inputs: Tensor) -> StepGraph:
    with FakeTensorMode() as mode:
        module = trace(function, [mode.from_tensor(x) for x in inputs])
    return StepGraph(module, (), (), {})


def operators(step: StepGraph) -> list[object]:
    return [node.target for node in nodes(step) if node.op == "call_function"]


@pytest.mark.parametrize(
    "identity",
    [
        lambda x: x.clone(),
        lambda x: x.detach(),
        lambda x: torch.ops.aten.alias(x),
        lambda x: x.to(torch.float32, copy=True),
        lambda x: x.view(2, 3),
        lambda x: x.expand(2, 3),
        lambda x: x[:],
        lambda x: x.contiguous().clone().detach(),
    ],
)
def test_identities_go(identity) -> None:
    step = remove_identities(graph_of(lambda x: identity(x) * 2, torch.ones(2, 3)))
    assert operators(step) == [aten.mul.Tensor]


@pytest.mark.parametrize(
    "change", [lambda x: x.to(torch.bfloat16), lambda x: x.view(6), lambda x: x.expand(4, 2, 3), lambda x: x[:, 1:]]
)
def test_what_changes_something_stays(change) -> None:
    step = graph_of(lambda x: change(x) * 2, torch.ones(2, 3))
    assert operators(remove_identities(step)) == operators(step)


def test_a_result_that_is_an_input_stays_a_result() -> None:
    step = remove_identities(graph_of(lambda x, y: [x.clone(), y + x], torch.ones(2), torch.ones(2)))
    (outputs,) = step.module.graph.output_node().args
    assert outputs[0] is next(iter(step.module.graph.nodes))


def test_views_of_constants() -> None:
    step = graph_of(lambda x: x * torch.tensor([1.0, 2.0]).view(2), torch.ones(2))
    torch.testing.assert_close(run_passes(step).module(torch.ones(2)), [torch.tensor([1.0, 2.0])])


def test_dead_nodes_go_and_inputs_stay() -> None:
    def function(x: Tensor, unused: Tensor) -> Tensor:
        (x + 1).exp()
        torch.split(x, 1)
        return x * 2

    step = remove_dead_nodes(graph_of(function, torch.ones(2), torch.ones(3)))
    assert operators(step) == [aten.mul.Tensor]
    assert len(step.module.graph.find_nodes(op="placeholder")) == 2


def test_a_random_draw_that_nothing_needs_goes() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(aten.normal_functional.default, (x,))
    graph.output([graph.call_function(operator.neg, (x,))])
    step = remove_dead_nodes(StepGraph(fx.GraphModule({}, graph), (), (), {}))
    assert operators(step) == [operator.neg]


HEADS = (4, 2, 3)


@pytest.mark.parametrize(
    ("function", "fenced"),
    [
        (lambda x, w: (x @ w).view(HEADS).transpose(0, 1), True),
        (lambda x, w: (x @ w).view(2, 2, 6).view(2, 2, 2, 3) + 1, True),
        (lambda x, w: ((x @ w).relu(), (x @ w).view(HEADS).relu()), True),
        (lambda x, w: (x @ w).view(2, 2, 6) + 1, False),
        (lambda x, w: (x @ w).relu().view(HEADS), False),
        (lambda x, w: x.view(2, 2, 5).relu(), False),
    ],
    ids=["heads", "rows, then heads", "also read whole", "rows", "not the product", "no product"],
)
def test_products_that_are_split_into_heads_are_fenced(function, fenced: bool) -> None:
    inputs = torch.rand(4, 5), torch.rand(5, 6)
    step = graph_of(function, *inputs)
    after = fence_products(step)
    fences = [node for node in nodes(after) if node.target is fence]
    assert len(fences) == fenced
    for node in fences:
        ((product,),) = node.args
        assert product.target is aten.mm.default and list(product.users) == [node]
    assert operators(fence_products(after)) == operators(after)
    for result, want in zip(after.module(*inputs), step.module(*inputs), strict=True):
        assert torch.equal(result, want)


def looped_step() -> StepGraph:
    """Rows through three layers that are a loop, and a last one; no pass has touched it."""

    class Looped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
            self.last = nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.last(x)

    with pytest.MonkeyPatch.context() as patch, simulated_device_mesh(Mesh()) as mesh:
        patch.setattr(capture_module, "run_passes", lambda step: step)
        module = Looped()
        simple_fsdp(module, mesh)
        return capture_train_step(
            module, weighted_squares, AdamW(), batch_fields(8), mesh, layers=Layers(Keep(save_all), looped=True)
        )


def test_what_comes_before_a_backward_loop_ends_before_it() -> None:
    step = looped_step()
    after = finish_before_loops(step)
    forward, backward = after.module.graph.find_nodes(op="call_function", target=loop)
    (together,) = {node for node in nodes(after) if node.target is fence}
    assert backward.args[1][0].args == (together, 0)
    assert together not in forward.all_input_nodes
    # The gradients of the last layer's weight and bias, and that of what enters it.
    assert sorted(tuple(value.shape) for value in together.meta["val"]) == [(3,), (3, WIDTH), (8, WIDTH)]
    order = list(after.module.graph.nodes)
    for gradient in together.args[0]:
        assert list(gradient.users) == [together] and order.index(gradient) < order.index(backward)
    assert text_of(finish_before_loops(after)) == text_of(after)
    with simulated_device_mesh(Mesh()):
        for value, result, want in zip(step.outputs, results(after), results(step), strict=True):
            assert torch.equal(result, want), value.name
