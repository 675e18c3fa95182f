"""Every lowering against PyTorch: value, shape, dtype. The samples are rows in `samples/`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from graph.small_step import Stack, capture
from hypothesis import given, settings
from hypothesis import strategies as st
from support import TOLERANCE, relative_error
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only
from xla.lowering_samples import SAMPLES, Sample, row

from wholestep.errors import LoweringError
from wholestep.graph.call import call, fence
from wholestep.graph.collectives import GROUP
from wholestep.graph.memory import to_device, to_host
from wholestep.graph.random import number_draws
from wholestep.graph.scan import loop
from wholestep.parallel import Mesh
from wholestep.xla.chips import CHIPS
from wholestep.xla.draws import Draws
from wholestep.xla.dtypes import carried
from wholestep.xla.interpret import Interpreter, check_operators
from wholestep.xla.lowering import LOWERINGS, shape
from wholestep.xla.lowering.registry import Lowering, lowers

aten = torch.ops.aten
DROPOUTS = ((0.3, True), (0.0, True), (1.0, True), (0.3, False))
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def graph_of(*calls: Sample) -> tuple[fx.GraphModule, list[Tensor]]:
    """A graph of one node for each call, all outputs; and the tensors that its placeholders stand for."""
    graph, mode = fx.Graph(), FakeTensorMode()
    inputs: list[Tensor] = []
    nodes = []

    def placeholder(tensor: Tensor) -> fx.Node:
        node = graph.placeholder(f"x{len(inputs)}")
        node.meta["val"] = mode.from_tensor(tensor)
        inputs.append(tensor)
        return node

    for each in calls:
        args, kwargs = tree_map_only(Tensor, placeholder, (each.args, each.kwargs))
        node = graph.call_function(each.target, args, kwargs)
        fake_args, fake_kwargs = tree_map_only(fx.Node, lambda node: node.meta["val"], (args, kwargs))
        with mode:
            node.meta["val"] = each.target(*fake_args, **fake_kwargs)
        nodes.append(node)
    graph.output(nodes)
    number_draws(nodes)
    return fx.GraphModule({}, graph), inputs


def run(module: fx.GraphModule, inputs: list[Tensor], key: jax.Array | None = None) -> list[jax.Array]:
    """The graph's outputs, lowered and compiled."""
    arrays = [jax.numpy.asarray(as_float32(x), carried(x.dtype)) for x in inputs]
    return tree_leaves(jax.jit(lambda *args: Interpreter(Draws(key)).run(module, *args))(*arrays))


def as_float32(value: Tensor | jax.Array) -> np.ndarray:
    """Every dtype of the samples in one that NumPy knows, exactly (their integers are small); complex ones stay so."""
    if isinstance(value, Tensor) and value.is_complex():
        return value.resolve_conj().numpy()
    value = value.resolve_neg() if isinstance(value, Tensor) else value
    if not isinstance(value, Tensor) and jnp.iscomplexobj(value):
        return np.asarray(value)
    return value.float().numpy() if isinstance(value, Tensor) else np.asarray(value, np.float32)


def check(samples: Sequence[Sample]) -> None:
    """The lowerings give what PyTorch gives. All samples are one program: compiling is what takes the time."""
    results = iter(run(*graph_of(*samples)))
    for i, sample in enumerate(samples):
        for reference in tree_leaves(sample.reference(*sample.args, **sample.kwargs)):
            check_result(next(results), reference, sample.values, f"sample {i}, {sample}")
    assert not list(results), "more results than PyTorch gives"


def check_result(result: jax.Array, reference: Tensor, values: bool, where: str) -> None:
    assert result.shape == tuple(reference.shape), where
    assert result.dtype == carried(reference.dtype), where
    if not values:
        return
    value, want = as_float32(result), as_float32(reference)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(value[~finite], want[~finite], where)
    narrowest = torch.bfloat16 if reference.dtype.itemsize == 2 else torch.float32
    inexact = reference.dtype.is_floating_point or reference.dtype.is_complex
    tolerance = TOLERANCE[narrowest] if inexact else 0
    assert relative_error(value[finite], want[finite]) <= tolerance, f"{where}: {value} is not {want}"


BY_OPERATOR = {
    target: [sample for sample in SAMPLES if sample.target is target] for target in {s.target: None for s in SAMPLES}
}


@pytest.mark.parametrize("target", BY_OPERATOR, ids=str)
def test_against_pytorch(target: Any) -> None:
    check(BY_OPERATOR[target])


def test_every_operator_has_a_sample() -> None:
    # In test_random_operators.py, tests/graph/test_scan.py and tests/parity; moves, which trace to nothing, in
    # test_memory.py. What is no ATen operator is a kernel: tests/kernels.
    random = {target for target in LOWERINGS if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())}
    elsewhere = {operator.getitem, loop, call, fence, GROUP, to_host, to_device, *random}
    others = {target for target in LOWERINGS if getattr(target, "namespace", "aten") != "aten"}
    missing = set(LOWERINGS) - {sample.target for sample in SAMPLES} - elsewhere - others
    assert not missing, f"add a row to tests/xla/samples for {sorted(map(str, missing))}"


def operand(dtype: torch.dtype, form: str) -> Any:
    """Small values of a dtype as a tensor, a tensor without dimensions or a Python number."""
    tensor = torch.tensor([0, 1, 2, 3, 5]).to(dtype)
    return {"tensor": tensor, "0-d": tensor[2], "number": tensor[2].item()}[form]


def binary(name: str, x: Any, y: Any) -> Sample:
    numbers = "Tensor" if isinstance(y, Tensor) or name in ("add", "sub", "mul", "div") else "Scalar"
    return row(getattr(getattr(aten, name), numbers), x, y)


def defined(sample: Sample) -> bool:
    """PyTorch does not subtract bools."""
    try:
        sample.target(*sample.args)
    except RuntimeError:
        return False
    return True


NAMES = st.sampled_from(["add", "sub", "mul", "div", "eq", "lt", "bitwise_and"])
TENSORS = st.builds(operand, st.sampled_from(DTYPES), st.sampled_from(["tensor", "0-d"]))
OPERANDS = st.builds(operand, st.sampled_from(DTYPES), st.sampled_from(["tensor", "0-d", "number"]))


@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(st.lists(st.builds(binary, NAMES, TENSORS, OPERANDS).filter(defined), min_size=20, max_size=40))
def test_promotion_is_pytorchs(samples: list[Sample]) -> None:
    check(samples)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout(dtype: torch.dtype) -> None:
    x = torch.randn(200, 100).to(dtype)
    module, inputs = graph_of(*(row(aten.native_dropout.default, x, p, train) for p, train in DROPOUTS))
    results = iter(run(module, inputs, jax.random.key(0)))
    for (p, train), dropped, kept in zip(DROPOUTS, results, results, strict=True):
        share, mask = 1 - p if train else 1, torch.from_numpy(as_float32(kept)).to(dtype)
        assert as_float32(kept).mean() == pytest.approx(share, abs=0.02)
        expected = x * mask / share if share else torch.zeros_like(x)
        assert relative_error(as_float32(dropped), as_float32(expected)) <= TOLERANCE[dtype]


def test_random_draws_depend_on_the_key_and_the_node() -> None:
    draw = row(aten.normal_functional.default, torch.zeros(1000))
    module, inputs = graph_of(draw, draw)
    first, second = run(module, inputs, jax.random.key(0))
    again, _ = run(module, inputs, jax.random.key(0))
    other, _ = run(module, inputs, jax.random.key(1))
    np.testing.assert_array_equal(first, again)
    assert (first != second).mean() > 0.99 and (first != other).mean() > 0.99
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


@pytest.mark.parametrize("shift", [64, -1, 129])
def test_lanes_that_the_matrix_unit_rolls_are_as_they_were(monkeypatch: pytest.MonkeyPatch, shift: int) -> None:
    monkeypatch.setattr(shape, "chip_lowered_for", lambda: CHIPS[0])
    x = torch.randn(3, 5, 128).bfloat16()
    module, inputs = graph_of(row(aten.roll.default, x, [shift], [-1]))
    program = jax.jit(lambda x: Interpreter().run(module, x)).lower(jnp.asarray(as_float32(x), jnp.bfloat16))
    assert "dot_general" in program.as_text()
    (result,) = run(module, inputs)
    np.testing.assert_array_equal(as_float32(result), as_float32(x.roll(shift, -1)))


def test_a_random_operator_without_a_key_is_an_error() -> None:
    module, inputs = graph_of(row(aten.normal_functional.default, torch.zeros(3)))
    with pytest.raises(LoweringError, match=r"normal_functional.*draws random numbers"):
        run(module, inputs)


def test_a_second_lowering_of_an_operator_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"aten\.mm\.default has a lowering already"):
        lowers(aten.mm.default)(lambda x, y: x)


class Running(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(-1).values.logcumsumexp(-1)


def test_all_missing_operators_are_named_with_their_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    for target in (aten.logcumsumexp.default, aten.flip.default, aten.scatter.src):
        monkeypatch.delitem(LOWERINGS, target)
    module = Stack()
    module.gain = nn.Sequential(nn.Tanh(), Running())
    step = capture(module, Mesh())
    with pytest.raises(LoweringError) as raised:
        check_operators(step.module)
    lines = str(raised.value).splitlines()
    assert lines[0] == "these operators have no lowering to XLA yet:"
    assert "  aten.logcumsumexp.default: in gain.1, gain.1 (gradient)" in lines
    assert "  aten.flip.default: in gain.1 (gradient)" in lines
    assert "  aten.scatter.src: in gain.1 (gradient)" in lines


@pytest.mark.parametrize("wrong", [lambda x, y: (x @ y).astype("bfloat16"), lambda x, y: x], ids=["dtype", "shape"])
def test_a_wrong_lowering_is_caught_at_its_node(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    monkeypatch.setitem(LOWERINGS, aten.mm.default, Lowering(wrong, False))
    module, inputs = graph_of(row(aten.mm.default, torch.ones(2, 3), torch.ones(3, 4)))
    next(iter(module.graph.find_nodes(op="call_function", target=aten.mm.default))).meta["module"] = "layers.0"
    with pytest.raises(
        LoweringError, match=r"aten\.mm\.default gave .*PyTorch gives torch.float32\[2, 4\] \(in layers"
    ):
        run(module, inputs)


def test_a_lowering_with_too_few_results_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOWERINGS, aten.unbind.int, Lowering(lambda x: [x[0]], False))
    module, inputs = graph_of(row(aten.unbind.int, torch.ones(2, 3)))
    with pytest.raises((LoweringError, ValueError)):
        run(module, inputs)
