"""`torch.compile(backend="wholestep")` against eager PyTorch: values, gradients, buffers, and what was written into."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import TOLERANCE, relative_error
from torch import Tensor, library, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from wholestep.errors import LoweringError

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # PyTorch's own, in dynamo


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="wholestep", **{"fullgraph": True, **options})


def assert_close(got: Any, wanted: Any, where: str = "", dtype: torch.dtype | None = None) -> None:
    """The same but for rounding; tensors also of one dtype, and of the same strides."""
    got, wanted = tree_leaves(got), tree_leaves(wanted)
    assert len(got) == len(wanted), where
    for one, other in zip(got, wanted, strict=True):
        if not isinstance(other, Tensor):
            assert one == other, where
            continue
        assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad), where
        if other.dtype.is_floating_point:
            narrowest = dtype or (torch.bfloat16 if other.dtype == torch.bfloat16 else torch.float32)
            error = relative_error(one.detach().double().numpy(), other.detach().double().numpy())
            assert error <= TOLERANCE[narrowest], f"{where}: {error}"
        else:
            assert torch.equal(one, other), where


def run(function: Callable[..., Any], module: nn.Module | None, inputs: list[Any]) -> dict[str, Any]:
    """What `function(*inputs)` gives and changes, with the gradients of a weighted sum of its results."""
    outputs = function(*inputs)
    wanted = [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
    if wanted:
        sum((x.float() * torch.linspace(-1, 2, x.numel()).view(x.shape)).sum() for x in wanted).backward()
    found = {f"output {i}": x for i, x in enumerate(tree_leaves(outputs))}
    for i, x in enumerate(inputs):
        if isinstance(x, Tensor):
            found |= {f"input {i}": x.detach(), f"gradient of input {i}": x.grad if x.is_leaf else None}
    if module is not None:
        found |= {f"gradient of {name}": x.grad for name, x in module.named_parameters()}
        found |= {f"buffer {name}": x for name, x in module.named_buffers()}
    return found


def agree(function: Callable[..., Any], *inputs: Any, dtype: torch.dtype | None = None, **options: Any) -> None:
    """`function`, maybe a module, does compiled what it does eagerly; twice."""
    module = function if isinstance(function, nn.Module) else None
    other_module = copy.deepcopy(module)
    if module is not None:
        module.zero_grad()  # of an earlier call; copies have no gradients
    fast = compiled(function, **options)
    for _ in range(2):
        got = run(fast, module, copy.deepcopy(list(inputs)))
        wanted = run(other_module or function, other_module, copy.deepcopy(list(inputs)))
        assert got.keys() == wanted.keys()
        for name in wanted:
            assert_close(got[name], wanted[name], name, dtype)


def x(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


class Attention(nn.Module):
    def __init__(self, width: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x_BLD: Tensor) -> Tensor:
        shape = (*x_BLD.shape[:2], self.heads, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm(x_BLD)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x_BLD + self.out(mixed.transpose(1, 2).reshape(x_BLD.shape))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.embedding(tokens)).flatten(0, 1), tokens.flatten())


class Cell(nn.Module):
    """A recurrence written out."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(9, 4 * 5)

    def forward(self, x_LBD: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        h = c = x_LBD.new_zeros(x_LBD.shape[1], 5)
        outputs = []
        for x_BD in x_LBD:
            i, f, g, o = self.gates(torch.cat([x_BD, h], -1)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs), {"h": h, "c": c}


def test_mlp() -> None:
    agree(nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 3), nn.Softmax(-1)), x(5, 7))


def test_attention() -> None:
    agree(nn.Sequential(Attention(), Attention()), x(2, 10, 24))


def test_convolutions_and_batch_norm() -> None:
    layers = nn.Conv2d(3, 6, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)
    agree(nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 4)), x(4, 3, 8, 8))


def test_batch_norm_counts_and_keeps_statistics() -> None:
    module = nn.BatchNorm1d(5)
    agree(module, x(8, 5))
    assert module.num_batches_tracked.item() == 2
    agree(module.eval(), x(8, 5))


def test_tied_weights() -> None:
    agree(Tied(), torch.randint(11, (3, 5)))


def test_a_loop_in_python() -> None:
    agree(Cell(), x(6, 3, 4))


def test_views_and_copies_of_inputs_and_results() -> None:
    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y = a * b
        return a, a.t(), b.view(-1), b.clone(), y, y.t(), y.clone(), y[1:], y.expand(2, 3, 3), a.detach()

    a, b = x(3, 3), torch.randn(3, 3)
    agree(function, a, b)
    results = compiled(function)(a, b)
    assert [result.stride() for result in results] == [result.stride() for result in function(a, b)]
    assert results[2]._base is b and results[0] is a
    before = results[3].clone()
    with torch.no_grad():
        b.fill_(7)
    assert torch.equal(results[3], before)
    results[6].detach().zero_()
    assert results[4].any()


def test_strides_of_results() -> None:
    for function in (lambda a: (a + 1).t(), lambda a: torch.empty_like(a.t()).copy_(a), lambda a: a.t() * 2):
        for a in (torch.randn(3, 3), x(3, 3)):
            assert compiled(function)(a).stride() == function(a).stride()


def test_inputs_that_are_written_into() -> None:
    def function(a: Tensor, b: Tensor, count: Tensor) -> Tensor:
        a.mul_(2)
        a[1].add_(b[0])
        count += 1
        return (a * b).sum()

    agree(function, torch.randn(3, 4), x(3, 4), torch.tensor(3))


def test_a_result_that_is_written_into() -> None:
    def function(a: Tensor) -> tuple[Tensor, Tensor]:
        y = a.exp()
        return y, y.sum()

    a = x(3)
    y, total = compiled(function)(a)
    with torch.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_an_input_that_is_written_into_before_the_backward_pass() -> None:
    a, b = x(3), x(3)
    y = compiled(lambda a, b: a * b)(a, b)
    with torch.no_grad():
        a.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inputs_without_gradients_and_parameters_without_use() -> None:
    module = nn.ModuleDict({"used": nn.Linear(3, 2), "frozen": nn.Linear(2, 2), "unused": nn.Linear(9, 9)})
    module["frozen"].requires_grad_(False)

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = module

        def forward(self, a: Tensor, index: Tensor) -> Tensor:
            return self.parts["frozen"](self.parts["used"](a[index]))

    agree(Part(), torch.randn(4, 3), torch.tensor([2, 0]))


def test_results_that_are_no_tensors() -> None:
    agree(lambda a, n: {"y": a + n, "n": n + 1, "none": None, "shape": a.shape, "name": "y"}, x(3), 4)


def test_no_gradient_at_all() -> None:
    with torch.no_grad():
        agree(nn.Linear(3, 2), torch.randn(4, 3))
    with torch.inference_mode():
        result = compiled(nn.Linear(3, 2))(torch.randn(4, 3))
    assert result.is_inference()


def test_two_backward_passes() -> None:
    a = x(4)
    y = compiled(lambda a: (a.sin() * a).sum())(a)
    y.backward(retain_graph=True)
    first = a.grad.clone()
    y.backward()
    torch.testing.assert_close(a.grad, 2 * first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_second_derivatives_are_refused() -> None:
    a = x(4)
    (gradient,) = torch.autograd.grad(compiled(lambda a: a.pow(3).sum())(a), a, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_autocast() -> None:
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))

    class Under(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, a: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.module(a)

    agree(Under(), x(6, 16), dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    a = torch.randint(2, (3, 4)).to(dtype)
    agree(lambda a: (a.t(), a[1:] + a[:-1], a.sum(), a.to(torch.float32) * 2), a)


def test_a_new_shape_is_a_new_program() -> None:
    function = compiled(lambda a, s: (a.view(2, -1) * s).sum(1) + a.shape[0])
    for size, scale in ((4, 0.5), (6, 0.25), (8, 2.0), (4, 0.5)):
        a = torch.randn(size)
        torch.testing.assert_close(function(a, scale), (a.view(2, -1) * scale).sum(1) + size)


def test_sizes_that_may_not_be_fixed() -> None:
    a = torch.randn(4)
    torch._dynamo.mark_dynamic(a, 0)
    with pytest.raises(RuntimeError, match=r"You marked .* as dynamic but your code specialized it"):
        compiled(lambda a: a * 2)(a)


def test_constants_are_the_callers_own() -> None:
    function = compiled(lambda: (torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)))
    for _ in range(2):
        listed, zeros = function()
        assert listed.tolist() == [1, 2, 3] and not zeros.any()
        listed.add_(1)
        zeros.add_(1)


def test_empty_tensors_and_graphs_without_inputs() -> None:
    agree(lambda a: (a * 2, a.sum(), torch.arange(4) + 1), torch.zeros(0, 3))
    agree(lambda: torch.full((3,), 2.5) * torch.tensor([1.0, 2.0, 3.0]))


def test_dropout() -> None:
    function = compiled(lambda a: F.dropout(a, 0.25))
    a = torch.ones(100, 100, requires_grad=True)
    torch.manual_seed(3)
    first, second = function(a), function(a)
    torch.manual_seed(3)
    assert torch.equal(function(a), first)
    assert not torch.equal(first, second)
    assert (first == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert first.unique().tolist() == pytest.approx([0, 4 / 3])
    second.sum().backward()
    assert torch.equal(a.grad, second)
    assert torch.equal(compiled(lambda a: F.dropout(a, 0.25, training=False))(a), a)


def test_random_numbers_move_pytorchs_generator_on() -> None:
    torch.manual_seed(1)
    compiled(lambda a: a * 2)(torch.ones(3))
    untouched = torch.rand(())
    torch.manual_seed(1)
    assert torch.rand(()) == untouched
    torch.manual_seed(1)
    drawn = compiled(lambda a: a + torch.randn_like(a) + torch.rand(3))(torch.zeros(3))
    assert torch.rand(()) != untouched and drawn.isfinite().all()


def test_what_is_recomputed_draws_the_same() -> None:
    weight = torch.randn(16, 16)

    def block(a: Tensor) -> Tensor:
        return F.dropout((a @ weight).tanh(), 0.5) * 3

    a = x(8, 16)
    y = compiled(lambda a: checkpoint(block, a, use_reentrant=False))(a)
    kept = y != 0
    y.sum().backward()
    slope = 1 - (a.detach() @ weight).tanh() ** 2
    torch.testing.assert_close(a.grad, (kept * 6 * slope) @ weight.t())


@library.custom_op("test_compile::forward_only", mutates_args=())
def forward_only(a: Tensor) -> Tensor:
    return a * 2


@library.custom_op("test_compile::backward_only", mutates_args=())
def backward_only(a: Tensor) -> Tensor:
    return a * 2


for operator in (forward_only, backward_only):
    operator.register_fake(torch.empty_like)
forward_only.register_autograd(lambda ctx, grad: backward_only(grad))


class Doubled(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        return forward_only(a)


def test_all_operators_without_lowering_in_one_error() -> None:
    with pytest.raises(LoweringError, match="no lowering") as raised:
        compiled(nn.Sequential(Doubled()))(x(3))
    message = str(raised.value)
    assert "forward_only.default: in 0" in message and "backward_only.default: in 0 (gradient)" in message


def test_values_that_do_not_fit() -> None:
    function = compiled(lambda a: a + 1)
    with pytest.raises(ValueError, match=r"does not fit torch\.int32, in which programs carry torch\.int64"):
        function(torch.tensor([2**40]))
    with pytest.raises(ValueError, match=r"does not fit torch\.float32"):
        function(torch.tensor([1e300], dtype=torch.float64))
    assert function(torch.tensor([float("inf")], dtype=torch.float64)).isinf().all()


def test_nested_inputs() -> None:
    def function(tree: dict[str, Any]) -> dict[str, Any]:
        return tree_map(lambda leaf: leaf * 2, tree)

    agree(function, {"a": x(3), "b": [torch.randn(2), {"c": torch.arange(4)}]})


def test_where_the_graph_breaks_and_what_has_no_input() -> None:
    def chooses(x: Tensor) -> Tensor:
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return y * x.max().item() + x[x > 1].sum()

    x = torch.tensor([1.0, 2.0, -0.5])
    assert torch.allclose(torch.compile(chooses)(x.to("tpu")).cpu(), chooses(x))
    assert torch.compile(lambda n: torch.zeros(n, device="tpu") + 1)(3).tolist() == [1, 1, 1]
    assert torch.compile(lambda x: x.to("tpu") + 1)(x).device.type == "tpu"


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
}


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizers_step(name: str, whole: bool) -> None:
    def train(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
        optimizer = OPTIMIZERS[name](list(module.parameters()))
        x = torch.linspace(-1, 1, 15).reshape(5, 3).to(device)

        def step() -> None:
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()

        if device == "tpu" and whole:
            step = torch.compile(step)
        elif device == "tpu":
            optimizer.step = torch.compile(optimizer.step)
        for _ in range(3):
            step()
        return [parameter.detach().cpu() for parameter in module.parameters()]

    assert_close(train("tpu"), train("cpu"))


@pytest.mark.parametrize("cell", [nn.GRUCell(3, 4), nn.LSTMCell(3, 4), nn.GRUCell(3, 4, bias=False)], ids=str)
def test_recurrent_cells(cell: nn.Module) -> None:
    def run(module: nn.Module, device: str) -> list[Tensor]:
        x = torch.linspace(-1, 1, 6).reshape(2, 3).to(device).requires_grad_()
        results = tree_leaves(module(x))
        grads = torch.autograd.grad(sum(r.square().sum() for r in results), [x, *module.parameters()])
        return [each.detach().cpu() for each in (*results, *grads)]

    moved = copy.deepcopy(cell).to("tpu")
    assert_close(run(torch.compile(moved), "tpu"), run(cell, "cpu"))


class Constants(nn.Module):
    """Of tensors that its code makes on the input's device, and of a list as an index."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        factors = torch.tensor([1.0, 2.0, 3.0], device=x.device)
        return x[[1, 0]] * factors * self.scale + torch.tensor(2, device=x.device)


class Bags(nn.Module):
    """Of rows of a table."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(5, 3, mode=mode)

    def forward(self, x: Tensor) -> Tensor:
        indices = torch.arange(4, device=x.device)
        return self.bags(indices, indices[::2]) * x


@pytest.mark.parametrize(
    "make",
    [
        Constants,
        *(partial(Bags, mode) for mode in ("sum", "mean", "max")),
        *(partial(lambda dim: weight_norm(nn.Linear(3, 2), dim=dim), dim) for dim in (0, 1, None)),
    ],
    ids=["constants", "sums", "means", "maxima", "weight norm 0", "weight norm 1", "weight norm of all"],
)
def test_on_the_device(make: Callable[[], nn.Module]) -> None:
    module = make()

    def run(module: nn.Module, device: str) -> list[Tensor]:
        result = module(torch.linspace(-1, 1, 6).reshape(2, 3).to(device))
        result.square().sum().backward()
        return [each.detach().cpu() for each in (result, *(x.grad for x in module.parameters()))]

    moved = copy.deepcopy(module).to("tpu")
    assert_close(run(torch.compile(moved, fullgraph=True), "tpu"), run(module, "cpu"))


@pytest.mark.parametrize("device", ["cpu", "tpu"])
@pytest.mark.parametrize(
    "function", [lambda x: x[x > 0], torch.nonzero, torch.unique], ids=["mask", "nonzero", "unique"]
)
def test_shapes_that_values_decide(function: Callable[[Tensor], Tensor], device: str) -> None:
    def called(x: Tensor) -> Tensor:
        return function(x) + 1

    with pytest.raises(LoweringError, match=r"test_compile.py:\d+: the shape of what .* values"):
        compiled(called)(torch.arange(3.0, device=device))


def test_options_of_another_compiler() -> None:
    agree(lambda x: x * 2, torch.ones(3), mode="reduce-overhead")


@pytest.mark.parametrize("device", ["cpu", "tpu"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "function",
    [lambda x: x.split([1, 3]), torch.unbind, lambda x: (x.view(2, 2).t(), x[1:]), lambda x: (x, x.view(4))],
    ids=["split", "unbind", "views", "itself"],
)
def test_views_of_inputs(function: Callable[[Tensor], Any], requires_grad: bool, device: str) -> None:
    x = torch.zeros(4, device=device, requires_grad=requires_grad)
    views = compiled(function)(x)
    with torch.no_grad():
        x.add_(1)
        values = [view.cpu() for view in views]
    for view, value, wanted in zip(views, values, function(x), strict=True):
        assert torch.equal(value, torch.ones(view.shape)), "a copy"
        assert (view.shape, view.stride(), view.storage_offset()) == (
            wanted.shape,
            wanted.stride(),
            wanted.storage_offset(),
        )
    if requires_grad:
        first, *_ = compiled(function)(x)
        assert torch.equal(
            torch.autograd.grad(first.sum(), x)[0].cpu(), torch.autograd.grad(function(x)[0].sum(), x)[0].cpu()
        )


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_views_that_are_conjugated(device: str) -> None:
    def function(x: Tensor) -> Any:
        return x.conj().split([1, 2])

    x = torch.tensor([1 + 2j, 3 - 1j, 2j], device=device)
    for got, wanted in zip(compiled(function)(x), function(x), strict=True):
        assert torch.equal(got.cpu().resolve_conj(), wanted.cpu().resolve_conj())
