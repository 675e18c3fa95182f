"""JAX functions as PyTorch operators: eager, compiled by PyTorch, captured; values, gradients and refusals."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas as pl
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F
from xla.lowered import captured, lowered

from wholestep import jax_op
from wholestep.errors import LoweringError
from wholestep.graph.costs import flops
from wholestep.parallel import Mesh
from wholestep.xla.devices import device_mesh
from wholestep.xla.interpret import check_operators
from wholestep.xla.topologies import topology_mesh


@jax_op("test_jax_op::scaled_silu")
def scaled_silu(x: jax.Array, scale: float = 1.0) -> jax.Array:
    return scale * x * jax.nn.sigmoid(x)


def _double(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2


def _doubled(x: jax.Array, interpret: bool) -> jax.Array:
    return pl.pallas_call(_double, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=interpret)(x)


def _rows_forward(x: jax.Array, rows: jax.Array, bias: jax.Array | None = None, *, interpret: bool):
    # Residuals of every kind: an input, an output, something new, and what is no array.
    picked = _doubled(x[rows], interpret)
    tanh = jnp.tanh(picked)
    total = picked if bias is None else picked + bias
    return (total, tanh), (rows, tanh, jnp.cosh(picked), x.shape, bias is None)


def _rows_backward(residuals, grads: tuple[jax.Array, jax.Array], *, interpret: bool):
    rows, tanh, cosh, shape, no_bias = residuals
    of_total, of_tanh = grads
    of_picked = _doubled(of_total + of_tanh / cosh**2 + 0 * tanh, interpret)
    return jnp.zeros(shape, of_total.dtype).at[rows].add(of_picked), None, None if no_bias else of_total.sum(0)


@jax_op("test_jax_op::rows", forward=_rows_forward, backward=_rows_backward, flops=lambda x, rows, bias: 7 * x.shape[0])
def rows_op(
    x: jax.Array, rows: jax.Array, bias: jax.Array | None = None, *, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    return _rows_forward(x, rows, bias, interpret=interpret)[0]


def plain_rows(x: Tensor, rows: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    picked = 2 * x[rows]
    return (picked if bias is None else picked + bias), picked.tanh()


@jax_op("test_jax_op::products")
def products(x: jax.Array, factors: Sequence[jax.Array], shift: tuple[int, ...] = (0,)) -> list[jax.Array]:
    return [jnp.roll(x, shift, (0,)) * factor for factor in factors]


@jax_op("test_jax_op::accumulate", aliases={"total": 0})
def accumulate(total: jax.Array, update: jax.Array) -> tuple[jax.Array, jax.Array]:
    return total + update, update.sum()


@jax_op("test_jax_op::reuse", donate=["x"])
def reuse(x: jax.Array) -> jax.Array:
    return x + 1


def gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    weights = [torch.linspace(-1, 2, output.numel()).view(output.shape).to(output.dtype) for output in outputs]
    return torch.autograd.grad(outputs, inputs, weights)


def assert_same(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


X = torch.linspace(-3, 3, 15).view(5, 3)
ROWS = torch.tensor([4, 0, 0, 2])
BIAS = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_function_differentiated_by_jax(dtype: torch.dtype) -> None:
    x = X.clone().to(dtype).requires_grad_()
    out, expected = scaled_silu(x, 3.0), 3 * F.silu(x)
    assert out.dtype == dtype
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(*gradients([out], [x]), *gradients([expected], [x]), rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        assert torch.equal(scaled_silu(x), scaled_silu(x, scale=1.0))


@pytest.mark.parametrize("wanted", ["x", "bias", "both", "no bias"])
def test_a_function_with_its_own_gradient(wanted: str) -> None:
    x, bias = X.clone(), None if wanted == "no bias" else BIAS.clone()
    inputs = {"x": [x], "bias": [bias], "both": [x, bias], "no bias": [x]}[wanted]
    for tensor in inputs:
        tensor.requires_grad_()
    got, expected = rows_op(x, ROWS, bias), plain_rows(x, ROWS, bias)
    assert_same(got, expected)
    assert_same(gradients(got, inputs) if wanted != "bias" else gradients(got[:1], inputs),
                gradients(expected, inputs) if wanted != "bias" else gradients(expected[:1], inputs))  # fmt: skip


def test_lists_and_tuples() -> None:
    factors = [X + 1, X.flip(0)]
    inputs = [tensor.clone().requires_grad_() for tensor in (X, *factors)]
    got = products(inputs[0], inputs[1:], shift=[2])
    expected = [inputs[0].roll(2, 0) * factor for factor in inputs[1:]]
    assert_same(got, expected)
    assert_same(gradients(got, inputs), gradients(expected, inputs))


def test_an_alias_is_written_in_place() -> None:
    total, base = torch.zeros(5, 3), torch.zeros(6, 3)
    assert accumulate(total, BIAS + X).item() == pytest.approx((BIAS + X).sum().item())
    accumulate(base[1:], X)
    assert torch.equal(total, BIAS + X)
    assert torch.equal(base[1:], X)
    weight = X.clone().requires_grad_()
    total = torch.zeros(5, 3)
    accumulate(total, weight * 3)
    torch.testing.assert_close(torch.autograd.grad(total.sum(), weight)[0], torch.full_like(X, 3.0))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # PyTorch's own, in inductor
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_under_torch_compile(backend: str) -> None:
    def function(x: Tensor, bias: Tensor) -> Tensor:
        total, tanh = rows_op(x * 2, ROWS, bias)
        return scaled_silu(total, scale=0.5).sum() + tanh.square().sum()

    inputs = [X.clone().requires_grad_(), BIAS.clone().requires_grad_()]
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    assert_same(gradients([compiled(*inputs)], inputs), gradients([function(*inputs)], inputs))


def run_lowered(graph: torch.fx.GraphModule, *inputs: Tensor, devices: int = 1) -> list[Tensor]:
    mesh = device_mesh(Mesh(fsdp=devices))
    program = lowered(graph, mesh, *inputs)
    assert "callback" not in program.as_text()
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    results = program.compile()(*(jax.device_put(jnp.asarray(tensor.numpy()), replicated) for tensor in inputs))
    return [torch.from_dlpack(result.addressable_data(0)) for result in results]


@pytest.mark.parametrize("devices", [1, 4])
def test_captured_with_its_gradient_and_lowered_without_a_callback(devices: int) -> None:
    def step(x: Tensor, bias: Tensor, rows: Tensor) -> list[Tensor]:
        x, bias = (x * 1).requires_grad_(), (bias * 1).requires_grad_()
        outputs = [*rows_op(x, rows, bias), scaled_silu(x)]
        return [*gradients(outputs, [x, bias]), *outputs]

    graph = captured(step, X, BIAS, ROWS)
    called = {str(node.target) for node in graph.graph.nodes}
    assert {"test_jax_op.rows_forward.default", "test_jax_op.rows_backward.default"} <= called
    assert_same(run_lowered(graph, X, BIAS, ROWS, devices=devices), [x.detach() for x in step(X, BIAS, ROWS)])


def test_an_alias_in_a_captured_graph() -> None:
    def function(total: Tensor, update: Tensor) -> list[Tensor]:
        total = total * 1
        return [accumulate(total, update), total * 2]

    assert_same(run_lowered(captured(function, X, BIAS + X), X, BIAS + X), [(BIAS + X).sum(), (X + BIAS + X) * 2])


def test_the_platform_that_is_lowered_for_decides_on_interpretation() -> None:
    graph = captured(lambda x, rows: rows_op(x, rows), X, ROWS)
    assert "tpu_custom_call" not in lowered(graph, device_mesh(Mesh(fsdp=4)), X, ROWS).as_text()
    assert "tpu_custom_call" in lowered(graph, topology_mesh("v6e:2x2", Mesh(fsdp=4)), X, ROWS).as_text()


def test_flops_are_counted() -> None:
    graph = captured(lambda x, rows: gradients(rows_op(x.requires_grad_(), rows), [x]), X, ROWS)
    counted = {str(node.target): flops(node) for node in graph.graph.nodes if flops(node)}
    assert counted == {"test_jax_op.rows_forward.default": 35, "test_jax_op.rows_backward.default": 70}


def test_donated_arguments() -> None:
    assert torch.equal(reuse(X.clone()), X + 1)
    with pytest.raises(RuntimeError, match="takes over the memory of x, so it has no gradient"):
        reuse(X.clone().requires_grad_())
    check_operators(captured(lambda x: reuse(x * 2), X))
    with pytest.raises(LoweringError, match=r"reuse.default .* its argument 0, which aten.add.Tensor reads afterwards"):
        check_operators(captured(lambda x: reuse(x) + x, X))


def test_a_donated_argument_read_through_a_view() -> None:
    def function(x: Tensor) -> Tensor:
        x = x * 2
        view = x.view(3, 5)
        return reuse(x).view(3, 5) + view

    with pytest.raises(LoweringError, match=r"reuse.default .* reads afterwards: give it a copy"):
        check_operators(captured(function, X))


def test_refused_tensors() -> None:
    with pytest.raises(TypeError, match="float64 tensor; programs carry float32"):
        scaled_silu(X.double())
    with pytest.raises(ValueError, match="does not fit int32"):
        rows_op(X, torch.tensor([2**40]))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own, in torch.func
def test_only_first_derivatives_in_reverse_mode() -> None:
    """In every way to ask for others; none is silently zero."""
    x = X.clone().requires_grad_()
    y = scaled_silu(x).sum() + x.pow(3).sum()
    (grad,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(
        RuntimeError, match="scaled_silu_backward has no derivative: a jax_op can be differentiated once"
    ):
        grad.square().sum().backward()
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        torch.autograd.functional.hessian(lambda x: products(x, [x])[0].sum(), torch.ones(2))
    with pytest.raises(RuntimeError, match=r"forward-mode|setup_context"):  # the second is PyTorch's own refusal
        torch.func.jvp(scaled_silu, (X,), (X,))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward-mode derivative"):
        scaled_silu(forward_ad.make_dual(X, X))


def test_static_values_are_told_apart_by_more_than_equality() -> None:
    @jax_op("test_jax_op::copysign")
    def copysign(x: jax.Array, sign: float) -> jax.Array:
        return jnp.copysign(x, sign)

    ones = torch.ones(2)
    assert [copysign(ones, sign)[0].item() for sign in (0.0, -0.0, 0.0)] == [1, -1, 1]


def test_numpy_arrays_among_what_a_gradient_needs() -> None:
    factors = np.arange(3.0, dtype=np.float32)

    @jax_op("test_jax_op::closes_over")
    def closes_over(x: jax.Array) -> jax.Array:
        return x * factors

    @jax_op(
        "test_jax_op::keeps_array",
        forward=lambda x: (x * factors, (factors,)),
        backward=lambda residuals, grad: (grad * residuals[0],),
    )
    def keeps_array(x: jax.Array) -> jax.Array:
        return x * factors

    for op in (closes_over, keeps_array):
        x = X.clone().requires_grad_()
        op(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.from_numpy(factors).expand(5, 3))


def test_a_module_that_holds_one_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(scaled_silu)) is scaled_silu


def test_what_is_returned_must_be_as_declared() -> None:
    @jax_op("test_jax_op::too_many")
    def too_many(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x, x * 2, x * 3

    @jax_op("test_jax_op::not_one")
    def not_one(x: jax.Array) -> jax.Array:
        return x, x * 2

    with pytest.raises(TypeError, match="too_many: the function is declared to return 2 arrays and returned 3"):
        too_many(X)
    with pytest.raises(TypeError, match="not_one: the function is declared to return one array and returned 2"):
        not_one(X)


def test_an_alias_takes_only_what_is_like_it() -> None:
    with pytest.raises(TypeError, match=r"output 0 is torch.float32\[5, 3\] and cannot be written into 'total'"):
        accumulate(torch.zeros(5, 3, dtype=torch.int32), X)
    with pytest.raises(TypeError, match=r"cannot be written into 'total', which is torch.float32\[3\]"):
        accumulate(torch.zeros(3), X)


def test_arguments_may_have_any_name() -> None:
    @jax_op("test_jax_op::names")
    def names(*, forward: jax.Array, function: jax.Array, plain: float) -> jax.Array:
        return forward * plain + function

    assert torch.equal(names(forward=X, function=X, plain=2.0), X * 3)


def test_refused_functions() -> None:
    def unannotated(x) -> jax.Array:
        return x

    def without_result(x: jax.Array):
        return x

    def good(x: jax.Array) -> jax.Array:
        return x

    def several(xs: Sequence[jax.Array]) -> jax.Array:
        return xs[0]

    def nothing(size: int) -> jax.Array:
        return jnp.zeros(size)

    def infinite(x: jax.Array, limit: float = float("inf")) -> jax.Array:
        return x

    def static_dict(x: jax.Array, options: dict) -> jax.Array:
        return x

    with pytest.raises(ValueError, match="'good' is not namespace::operator"):
        jax_op("good")(good)
    with pytest.raises(ValueError, match="'a::b::c' is not namespace::operator"):
        jax_op("a::b::c")(good)
    with pytest.raises(ValueError, match="forward and backward come together"):
        jax_op("test_jax_op::a", forward=lambda x: (x, ()))
    with pytest.raises(TypeError, match="argument 'x' is annotated None"):
        jax_op("test_jax_op::b")(unannotated)
    with pytest.raises(TypeError, match="result is annotated None"):
        jax_op("test_jax_op::c")(without_result)
    with pytest.raises(TypeError, match="argument 'options' is annotated"):
        jax_op("test_jax_op::d")(static_dict)
    with pytest.raises(TypeError, match="'y' is no array argument"):
        jax_op("test_jax_op::e", donate=["y"])(good)
    with pytest.raises(TypeError, match="there is no output 3 to write into 'x'"):
        jax_op("test_jax_op::f", aliases={"x": 3})(good)
    with pytest.raises(TypeError, match="'xs' is donated; it must be one array, given by position"):
        jax_op("test_jax_op::g", donate=["xs"])(several)
    with pytest.raises(TypeError, match="none of its arguments is an array"):
        jax_op("test_jax_op::h")(nothing)
    with pytest.raises(TypeError, match="inf cannot be the default"):
        jax_op("test_jax_op::i")(infinite)
    with pytest.raises(ValueError, match="there is an operator test_jax_op::scaled_silu already"):
        jax_op("test_jax_op::scaled_silu")(good)
    with pytest.raises(ValueError, match="there is an operator test_jax_op::scaled_silu_forward already"):
        jax_op("test_jax_op::scaled_silu_forward")(good)


def test_a_backward_that_is_wrong_about_shapes() -> None:
    def wrong(residuals, grads):
        return (grads[0],)

    @jax_op("test_jax_op::wrong", forward=lambda x: (x.sum(1), ()), backward=lambda residuals, grads: (grads,))
    def row_sums(x: jax.Array) -> jax.Array:
        return x.sum(1)

    with pytest.raises(TypeError, match=r"wrong: backward gives .*\(5,\).* for array argument 0, which is .*\(5, 3\)"):
        row_sums(X.clone().requires_grad_()).sum().backward()
