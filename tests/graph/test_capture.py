"""A captured step: its signature, its graph, and the modules that it refuses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from graph.small_step import HIDDEN, WIDTH, Gain, Stack, batch_fields, capture, random_rows, text_of, weighted_squares
from torch import Tensor, fx, nn

from wholestep.errors import GraphError
from wholestep.graph.capture import capture_eval_step, capture_train_step
from wholestep.graph.optimizer import AdamW
from wholestep.graph.scan import loop
from wholestep.graph.step import StepGraph, graphs
from wholestep.parallel import Mesh, Policy, simple_fsdp, simulated_device_mesh

HYBRID = Mesh(replicate=2, fsdp=4)
PARAMETERS = {
    "first.weight": (12, 6),
    "first.bias": (12,),
    "gain.weight": (12,),
    "last.weight": (4, 10),
    "last.bias": (4,),
}


def calls(module: fx.GraphModule, name: str) -> list[fx.Node]:
    """The nodes of one graph, loop bodies apart, whose operator has `name` in it."""
    return [node for node in module.graph.nodes if node.op == "call_function" and name in str(node.target)]


def count(step: StepGraph, name: str) -> int:
    return sum(len(calls(module, name)) for module in graphs(step.module))


def test_the_signature_names_and_places_every_value() -> None:
    step = capture(Stack(), HYBRID)
    inputs = {value.name: value for value in step.inputs}
    slots = [f"{slot}/{name}" for slot in ("exp_avg", "exp_avg_sq") for name in PARAMETERS]
    parameters = [f"parameter/{name}" for name in PARAMETERS]
    assert list(inputs) == [*parameters, *slots, "batch/x", "batch/weight", "scalar/learning_rate", "scalar/step"]
    metrics = ["loss", "grad_norm", "weight", "largest", "grad_norms"]
    assert [value.name for value in step.outputs] == [*parameters, *slots, *(f"metric/{name}" for name in metrics)]
    for name, shape in PARAMETERS.items():
        for kind, prefix in {"parameter": "parameter", "optimizer": "exp_avg"}.items():
            value = inputs[f"{prefix}/{name}"]
            assert (value.kind, value.shape, value.dtype) == (kind, shape, torch.float32)
            assert value.placement == (("fsdp",), *((),) * (len(shape) - 1))
    assert inputs["batch/x"].placement == (("replicate", "fsdp"), ())
    assert inputs["batch/x"].local_shape(step.axes) == (1, WIDTH)
    assert inputs["scalar/step"].shape == ()
    assert step.axes == {"replicate": 2, "fsdp": 4}
    assert [value.name for value in step.state()] == [*parameters, *slots]


@pytest.mark.parametrize("microbatches", [1, 4])
def test_placeholders_and_results_are_what_the_signature_says(microbatches: int) -> None:
    step = capture(Stack(), HYBRID, rows=32, microbatches=microbatches)
    placeholders = step.module.graph.find_nodes(op="placeholder")
    (results,) = step.module.graph.output_node().args
    for values, nodes in [(step.inputs, placeholders), (step.outputs, results)]:
        for value, node in zip(values, nodes, strict=True):
            fake = node.meta["val"]
            assert (tuple(fake.shape), fake.dtype) == (value.local_shape(step.axes), value.dtype), value.name


def test_buffers_are_inputs_and_frozen_parameters_are_not_outputs() -> None:
    module = Stack()
    module.gain.weight.requires_grad_(False)
    module.register_buffer("offset", torch.zeros(3))
    module.last.register_forward_hook(lambda last, args, result: result + module.offset)
    step = capture(module, Mesh(fsdp=2))
    inputs = {value.name: value for value in step.inputs}
    assert (inputs["buffer/offset"].kind, inputs["buffer/offset"].placement) == ("buffer", ((),))
    outputs = {value.name for value in step.outputs}
    assert not outputs & {"buffer/offset", "parameter/gain.weight", "exp_avg/gain.weight"}
    assert "parameter/gain.weight" in inputs and "exp_avg/gain.weight" not in inputs


def test_an_eval_step_has_sums_and_no_gradients() -> None:
    with simulated_device_mesh(HYBRID) as mesh:
        step = capture_eval_step(simple_fsdp(Stack(), mesh), weighted_squares, batch_fields(8), mesh)
    assert {value.kind for value in step.inputs} == {"parameter", "batch"}
    assert [value.name for value in step.outputs] == ["metric/loss_sum", "metric/weight", "metric/largest"]
    assert not count(step, "reduce_scatter")
    assert not [node for node in step.module.graph.nodes if node.meta.get("backward")]


class Extra(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(2, 2)


class Normalized(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.BatchNorm1d(HIDDEN)


class MovingAverage(Stack):
    """Replaces its buffer rather than writing to it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.average = 0.9 * self.average + 0.1 * y.detach().mean(0)
        return y - self.average


class Detached(Stack):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Extra, r"the loss does not depend on extra\.weight, extra\.bias: use them, or requires_grad_\(False\)"),
        (Normalized, r"changes the buffer gain\.(.*) its module must say how the changes come together"),
        (MovingAverage, r"changes the buffer average .* buffer_reductions = \{'average'"),
        (Detached, r"the loss does not depend on first\.weight"),
    ],
)
def test_modules_that_cannot_be_captured(build: Callable[[], nn.Module], message: str, microbatches: int) -> None:
    with pytest.raises(GraphError, match=message):
        capture(build(), Mesh(fsdp=2), rows=16, microbatches=microbatches)


@pytest.mark.parametrize(
    ("mesh", "rows", "microbatches"), [(Mesh(fsdp=8), 12, 1), (HYBRID, 12, 1), (Mesh(fsdp=2), 6, 2)]
)
def test_rows_must_divide(mesh: Mesh, rows: int, microbatches: int) -> None:
    with pytest.raises(
        GraphError, match=f"'x' has {rows} rows.* into {mesh.size} devices x {microbatches} microbatches"
    ):
        capture(Stack(), mesh, rows=rows, microbatches=microbatches)


def test_a_module_must_be_sharded() -> None:
    with simulated_device_mesh(Mesh(fsdp=2)) as mesh, pytest.raises(GraphError, match=r"first\.weight is not sharded"):
        capture_train_step(Stack(), weighted_squares, AdamW(), batch_fields(8), mesh)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_nodes_are_labelled_with_their_module(microbatches: int) -> None:
    step = capture(
        nn.ModuleDict({"layers": nn.Sequential(Stack(), nn.Linear(3, 3))})["layers"], HYBRID, 32, microbatches
    )
    *_, body = graphs(step.module)
    products = [node for name in ("aten.mm", "aten.addmm") for node in calls(body, name)]
    labels = sorted((node.meta["module"], node.meta["backward"]) for node in products)
    forward = [("0.first", False), ("0.last", False), ("1", False)]
    weights, inputs = ["0.first", "0.last", "1"], ["0.last", "1"]  # the batch needs no gradient
    assert labels == sorted([*forward, *((path, True) for path in [*weights, *inputs])])
    assert {node.meta["module"] for node in calls(body, "tanh")} == {"0"}


def line(function: Callable[..., object], text: str) -> str:
    """Where the source of a function has a text: `small_step.py:30`."""
    lines, first = inspect.getsourcelines(function)
    (offset,) = (i for i, source in enumerate(lines) if text in source)
    return f"{Path(inspect.getfile(function)).name}:{first + offset}"


@pytest.mark.parametrize("microbatches", [1, 4])
def test_nodes_are_labelled_with_the_line_that_called_pytorch(microbatches: int) -> None:
    step = capture(Stack(), HYBRID, 32, microbatches)
    lines: dict[tuple[str, bool], set[str]] = {}
    for module in graphs(step.module):
        for node in module.graph.nodes:
            if node.op == "call_function" and node.meta["module"]:
                lines.setdefault((node.meta["module"], node.meta["backward"]), set()).add(node.meta["line"])
    gain, stack = line(Gain.forward, "x * self.weight"), line(Stack.forward, "self.last(")
    for backward in (False, True):
        # Of a module of PyTorch, the line of ours that called it; of a gradient, that of what it is the gradient of.
        assert gain in lines["gain", backward] and lines["gain", backward] <= {gain, stack}
        assert lines["first", backward] == lines["last", backward] == {stack}


def test_what_belongs_to_no_module_has_a_line_too() -> None:
    step = capture(Stack(), HYBRID)
    square = line(weighted_squares, ".square()")
    assert {node.meta["line"] for node in calls(step.module, "aten.pow") if not node.meta["module"]} >= {square}
    assert {node.meta["line"].partition(":")[0] for node in calls(step.module, "aten.sqrt")} >= {"optimizer.py"}
    everywhere = [node for module in graphs(step.module) for node in module.graph.nodes]
    assert not {node.meta["line"] for node in everywhere if node.meta.get("line", "").startswith("capture.py")}


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize(("collective", "backward"), [("all_gather", False), ("reduce_scatter", True)])
def test_collectives_are_labelled_with_the_module_they_serve(
    collective: str, backward: bool, microbatches: int
) -> None:
    *_, body = graphs(capture(Stack(), HYBRID, rows=32, microbatches=microbatches).module)
    labels = [(node.meta["module"], node.meta["backward"]) for node in calls(body, collective)]
    paths = [name.rpartition(".")[0] for name in PARAMETERS]
    assert sorted(labels) == [(path, backward) for path in paths]


@pytest.mark.parametrize("microbatches", [1, 4])
def test_capture_is_deterministic(microbatches: int) -> None:
    options = {"rows": 32, "microbatches": microbatches, "policy": Policy(gather_dtype=torch.bfloat16)}
    assert text_of(capture(Stack(), HYBRID, **options)) == text_of(capture(Stack(), HYBRID, **options))


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("mesh", [Mesh(fsdp=8), HYBRID], ids=str)
def test_every_rank_traces_one_program(monkeypatch: pytest.MonkeyPatch, mesh: Mesh, microbatches: int) -> None:
    def as_rank(rank: int) -> str:
        init = functools.partial(init_process_group, rank=rank)
        monkeypatch.setattr(dist, "init_process_group", lambda *args, **kwargs: init(*args, **{**kwargs, "rank": rank}))
        with torch.device("meta"):
            module = Stack()
        return text_of(capture(module, mesh, rows=32, microbatches=microbatches))

    init_process_group = dist.init_process_group
    assert as_rank(0) == as_rank(3) == as_rank(mesh.size - 1)


def test_microbatches_are_one_loop_that_holds_the_collectives() -> None:
    step = capture(Stack(), HYBRID, rows=32, microbatches=4)
    outer, body = graphs(step.module)
    assert [node.target for node in outer.graph.nodes if node.target is loop] == [loop]
    assert not calls(outer, "all_gather") and not calls(outer, "reduce_scatter")
    assert len(calls(body, "all_gather")) == len(calls(body, "reduce_scatter")) == len(PARAMETERS)
    # One all-reduce over the replicas for each gradient, two for the totals, one for the norm: after the loop.
    assert not calls(body, "all_reduce")
    assert len(calls(outer, "all_reduce")) == len(PARAMETERS) + 3


def test_without_replicas_gradients_are_not_reduced_again() -> None:
    step = capture(Stack(), Mesh(fsdp=8))
    assert count(step, "all_gather") == count(step, "reduce_scatter") == len(PARAMETERS)
    assert count(step, "all_reduce") == 2  # the totals and the norm


def test_one_device_needs_no_collective() -> None:
    assert not count(capture(Stack(), Mesh()), "c10d")


def run_in_pytorch(step: StepGraph, weight: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One step of a graph for one device, in PyTorch: inputs and outputs by name."""
    generator = torch.Generator().manual_seed(0)
    rows = random_rows(step.inputs[-3].shape[0])
    given = {value.name: torch.randn(value.shape, generator=generator) for value in step.inputs}
    given.update({f"batch/{name}": torch.from_numpy(field) for name, field in rows.items()})
    given["batch/weight"] *= weight
    given.update({name: array.square() for name, array in given.items() if name.startswith("exp_avg_sq")})
    given.update({"scalar/learning_rate": torch.tensor(0.1), "scalar/step": torch.tensor(1.0)})
    results = step.module(*(given[value.name] for value in step.inputs))
    return given, dict(zip((value.name for value in step.outputs), results, strict=True))


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_batch_without_weight_is_a_finite_step_of_zero_gradient(microbatches: int) -> None:
    step = capture(Stack(), Mesh(), rows=8, microbatches=microbatches)
    before, after = run_in_pytorch(step, weight=0.0)
    assert after["metric/loss"] == after["metric/grad_norm"] == after["metric/weight"] == 0
    for name in PARAMETERS:
        torch.testing.assert_close(after[f"exp_avg/{name}"], 0.9 * before[f"exp_avg/{name}"])
        assert torch.isfinite(after[f"parameter/{name}"]).all()


def test_microbatches_do_not_change_the_step() -> None:
    _, whole = run_in_pytorch(capture(Stack(), Mesh(), rows=8), weight=1.0)
    _, pieces = run_in_pytorch(capture(Stack(), Mesh(), rows=8, microbatches=4), weight=1.0)
    assert whole["metric/weight"] > 0
    for name in set(whole) - {"metric/largest"}:
        torch.testing.assert_close(pieces[name], whole[name], rtol=1e-5, atol=1e-6)


def test_after_an_error_the_next_capture_is_labelled_as_ever() -> None:
    class Broken(Gain):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("broken")

    expected = text_of(capture(Stack(), HYBRID))
    module = Stack()
    module.gain = Broken()
    with pytest.raises(ValueError, match="broken"):
        capture(module, HYBRID)
    step = capture(Stack(), HYBRID)
    assert text_of(step) == expected
    assert {node.meta["module"] for node in calls(step.module, "tanh")} == {""}
