"""Views alias their base: what is written through one is read through the other, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from device.reference import assert_close, assert_same, numbers, same_on_both
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytestmark = pytest.mark.usefixtures("eager_mode")

# What a view is made of: a 4 x 6 tensor.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "narrow": lambda x: x.narrow(1, 1, 3),
    "select": lambda x: x.select(0, 2),
    "slice": lambda x: x[1:, ::2],
    "transpose": lambda x: x.t(),
    "transposed slice": lambda x: x.t()[1:4],
    "expanded": lambda x: x[:, :1].expand(4, 3),
    "diagonal": lambda x: x.diagonal(1),
    "unfolded": lambda x: x.unfold(1, 2, 2),
    "as_strided": lambda x: x.as_strided((3, 2), (5, 2), 3),
    "view": lambda x: x.view(3, 8),
    "view as integers": lambda x: x.view(torch.int32),
    "view as halves": lambda x: x.view(torch.int16)[:, 1::2],
    "split": lambda x: x.split(2)[1],
    "chunk": lambda x: x.chunk(3, 1)[1],
    "unbind": lambda x: x.unbind(1)[3],
    "reshape": lambda x: x.reshape(2, 12)[1],
    "unsqueezed": lambda x: x[1].unsqueeze(-1),
    "squeezed": lambda x: x[1:2].squeeze(0),
    "flattened": lambda x: x.flatten()[5:15],
    "permuted": lambda x: x.view(2, 2, 6).permute(2, 0, 1)[1:3],
    "movedim": lambda x: x.view(2, 2, 6).movedim(0, 2),
    "unflattened": lambda x: x.unflatten(1, (2, 3))[:, 1],
    "detached": lambda x: x.detach()[0],
    "data": lambda x: x.data[0],
    "hsplit": lambda x: x.hsplit(2)[1],
    "tensor_split": lambda x: x.tensor_split(3)[1],
    "swapaxes": lambda x: x.swapaxes(0, 1)[2],
    "ellipsis": lambda x: x[..., 2],
    "None index": lambda x: x[None, 1:3, None, ::3],
    "empty": lambda x: x[2:2],
    "view_as": lambda x: x.view_as(torch.empty(24)),
    "contiguous": lambda x: x.contiguous()[1],
}


@pytest.mark.parametrize("name", VIEWS)
def test_writes_go_through_a_view_in_both_directions(name: str) -> None:
    def run(device: str) -> Any:
        base = numbers(4, 6, device=device)
        view = VIEWS[name](base)
        seen = [view.clone(), view.is_contiguous(), view.storage_offset(), view.stride()]
        if name != "expanded":
            # Where bits are seen as those of other numbers, 3.0 and 3.003 again: XLA has no denormals.
            view.fill_({torch.int32: 0x40400000, torch.int16: 0x4040}.get(view.dtype, 3))
            seen.append(base.clone())
        base.mul_(2)
        return [*seen, view, base, view._base is base, view.is_set_to(base)]

    same_on_both(run)


ASSIGNMENTS: dict[str, Callable[[Tensor], Any]] = {
    "index": lambda x: x.__setitem__(1, 5.0),
    "slices": lambda x: x.__setitem__((slice(1, 3), slice(None, None, 2)), numbers(2, 3, device=x.device.type)),
    "broadcast": lambda x: x.__setitem__((slice(None), slice(2, 4)), numbers(2, device=x.device.type)),
    "mask": lambda x: x.__setitem__(x > 0, 0),
    "indices": lambda x: x.__setitem__(torch.tensor([0, 2], device=x.device), 1.5),
    "CPU indices": lambda x: x.__setitem__((torch.tensor([0, 2]), torch.tensor([1, 1])), 1.5),
    "0-d tensor": lambda x: x.__setitem__((0, 0), torch.tensor(2.5)),
    "overlapping copy": lambda x: x[1:].copy_(x[:-1].clone()),
    "add": lambda x: x[1:3].add_(1),
    "product with a view of itself": lambda x: x[0].mul_(x[1]),
    "sum with its transpose": lambda x: x[:, :4].add_(x[:, :4].t().clone()),
    "masked_fill": lambda x: x.t().masked_fill_(x.t() < 0, -1),
    "index_add": lambda x: x.t().index_add_(0, torch.tensor([1, 1], device=x.device), x.t()[:2].clone()),
    "index_copy": lambda x: x.index_copy_(1, torch.tensor([0, 5], device=x.device), x[:, 2:4].clone()),
    "scatter": lambda x: x.scatter_(1, torch.tensor([[0], [1], [2], [3]], device=x.device), 9),
    "put": lambda x: x.put_(torch.tensor([3, 5], device=x.device), torch.tensor([1.0, 2.0], device=x.device)),
    "zero": lambda x: x.diagonal().zero_(),
    "clamp": lambda x: x[::2].clamp_(-1, 1),
    "lerp": lambda x: x[0].lerp_(x[1], 0.25),
    "addcmul": lambda x: x[2].addcmul_(x[0], x[1], value=0.5),
    "addmm": lambda x: x[:, :4].addmm_(x.clone(), x.t().clone()),  # PyTorch leaves open what overlapping ones give
    "squeeze": lambda x: x.unsqueeze_(0).squeeze_(0).t_(),
    "transpose": lambda x: x.transpose_(0, 1)[2].add_(1),
    "where": lambda x: torch.where(x > 0, x, 0).t()[1].add_(x[:, 1]),
    "copy of another dtype": lambda x: x[1].copy_(torch.arange(6, device=x.device)),
    "expanded copy": lambda x: x.copy_(x[0].clone().expand(4, 6)),
    "exponent": lambda x: x[0].pow_(2),
    "fill_diagonal": lambda x: x.fill_diagonal_(1),
    "tril": lambda x: x.tril_(),
    "swap": lambda x: x.__setitem__([0, 1], x[[1, 0]]),
    "logical": lambda x: x[0].logical_not_(),
    "relu": lambda x: torch.relu_(x[:, 3:]),
    "foreach": lambda x: torch._foreach_add_([x[0], x[1]], [x[2], x[3]]),
    "foreach of one twice": lambda x: torch._foreach_mul_([x, x], 2.0),
    "foreach crosswise": lambda x: torch._foreach_add_([x[0], x[1]], [x[1], x[0]], alpha=0.5),
    "foreach of overlapping": lambda x: torch._foreach_mul_(list(x.unbind(1)), 2.0),
    "inplace on integers": lambda x: x.view(torch.int32)[0].bitwise_and_(-256),
}


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_operators_that_write(name: str) -> None:
    def run(device: str) -> Any:
        base = numbers(4, 6, device=device)
        other, version = base.view(-1), base._version
        result = ASSIGNMENTS[name](base)
        return base, other, result, base._version - version

    same_on_both(run)


MASKED: dict[str, Callable[[Tensor], Any]] = {
    "mask": lambda x: x[x > 0],
    "rows": lambda x: x[x[:, 0] > 0],
    "columns": lambda x: x[:, x[0] > 0],
    "list": lambda x: x[[True, False, True, False]],
    "CPU mask": lambda x: x[(x > 0).cpu()],
    "product in place": lambda x: x.__setitem__(x > 0, x[x > 0] * 2),
    "repeated": lambda x: x.repeat_interleave(torch.tensor([1, 0, 2, 1], device=x.device), 0),
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "gradient": lambda x: torch.autograd.grad((y := x.clone().requires_grad_())[y > 0].square().sum(), y),
}


@pytest.mark.parametrize("name", MASKED)
def test_shapes_that_values_decide(name: str) -> None:
    same_on_both(lambda device: [x := numbers(4, 6, device=device), MASKED[name](x)])


def test_a_mask_hides_no_value_that_is_not_finite() -> None:
    def run(device: str) -> Any:
        x = torch.tensor([float("inf"), float("nan"), -1.0, 2.0], device=device).requires_grad_()
        mask = torch.tensor([False, False, False, True], device=device)
        results = [x * mask, mask * x, x.detach().clone().mul_(mask), *torch.autograd.grad(x.amax(0), x)]
        results += [x * mask.float(), (1 - mask.to(x.dtype)) * x, x * mask.float().sign(), torch.outer(mask.float(), x)]
        return [(one.isnan(), one.nan_to_num(nan=3.0)) for one in results]

    same_on_both(run)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("labels", [[[1, -1, 0, 2], [0, 2, -1, 1]], [[-1, 1, 2, 3], [3, 1, 0, 2]]])
def test_labels_end_at_the_first_negative_one(labels: list[Any], reduction: str) -> None:
    def run(device: str) -> Any:
        target = torch.tensor(labels, device=device)
        x = numbers(*target.shape, device=device).requires_grad_()
        loss = torch.nn.functional.multilabel_margin_loss(x, target, reduction=reduction)
        return loss, torch.autograd.grad(loss.sum(), x)

    same_on_both(run)


OUTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "mm": lambda x, out: torch.mm(x, x.t(), out=out),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "sort": lambda x, out: torch.sort(x, out=(out, torch.empty(0, dtype=torch.int64, device=x.device))),
    "arange": lambda x, out: torch.arange(5, out=out),
    "zeros": lambda x, out: torch.zeros(2, 3, out=out),
    "where": lambda x, out: torch.where(x > 0, x, -x, out=out),
    "stack": lambda x, out: torch.stack([x, x], out=out),
    "index_select": lambda x, out: torch.index_select(x, 0, torch.tensor([1, 0], device=x.device), out=out),
    "twice": lambda x, out: torch.cat([x, x], out=torch.add(x, 1, out=out)),
    "max": lambda x, out: torch.max(x, 1, out=(out, torch.empty(0, dtype=torch.int64, device=x.device))),
    "clamp": lambda x, out: torch.clamp(x, 0, 1, out=out),
}


@pytest.mark.parametrize("name", OUTS)
def test_out(name: str) -> None:
    def run(device: str) -> Any:
        x, out = numbers(4, 6, device=device), torch.empty(0, device=device)
        result = OUTS[name](x, out)
        first = result if isinstance(result, Tensor) else result[0]
        return first is out, out, x

    same_on_both(run)


@pytest.mark.filterwarnings("error")
def test_out_into_a_view() -> None:
    def run(device: str) -> Any:
        x, base = numbers(4, 6, device=device), torch.zeros(6, 8, device=device)
        torch.mul(x, 2, out=base.t()[1:7, 1:5].t())
        torch.mm(x, x.t(), out=base[2:, 4:])
        torch.add(x[0], x[1], out=x[0])
        return x, base

    same_on_both(run)


def test_out_of_another_dtype_or_device_is_refused() -> None:
    same_on_both(
        lambda device: torch.add(numbers(3, device=device), 1, out=torch.empty(3, dtype=torch.int32, device=device))
    )
    with pytest.raises(RuntimeError, match="device"):
        torch.add(numbers(3, device="tpu"), 1, out=torch.empty(3))


def test_resize() -> None:
    def run(device: str) -> Any:
        x = numbers(4, 6, device=device)
        view = x[1]
        x.resize_(2, 3)
        smaller = x.clone()
        x.resize_(4, 6)
        view.add_(1)
        y = numbers(3, device=device)
        y.resize_(7)[3:] = 0
        y.resize_as_(smaller)
        z = numbers(4, device=device)[1:3]
        z.resize_(5)[2:] = 1
        return x, smaller, view, y, z

    same_on_both(run)


def test_set() -> None:
    def run(device: str) -> Any:
        x, y = numbers(4, 6, device=device), torch.zeros(2, device=device)
        y.set_(x[1:3].t())
        y.add_(1)
        z = torch.empty(0, device=device).set_(x.untyped_storage(), 3, (2, 2), (6, 1))
        z.mul_(2)
        w = torch.empty(0, device=device).set_(x.untyped_storage())
        emptied = x[0].clone().set_()
        return x, y, z, w, emptied, y.is_set_to(x[1:3].t()), z.is_set_to(x)

    same_on_both(run)


def test_data_is_replaced() -> None:
    def run(device: str) -> Any:
        x, y = torch.nn.Parameter(numbers(4, 6, device=device)), numbers(6, 4, device=device)
        view = x.data
        x.data = y.t()
        x.data.add_(1)
        y[0] = 7
        return x, view, y, x._version

    same_on_both(run)


def test_storages() -> None:
    x = numbers(4, 6, device="tpu")
    assert x[1].untyped_storage()._cdata == x.t().untyped_storage()._cdata
    assert x.clone().untyped_storage()._cdata != x.untyped_storage()._cdata
    assert x[1:].untyped_storage().nbytes() == 4 * 24
    assert x[1:].untyped_storage().device == torch.device("tpu:0")


STRIDES: dict[str, Callable[[Tensor], Any]] = {
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "channels_last sum": lambda x: x.to(memory_format=torch.channels_last) + 1,
    "channels_last clone": lambda x: x.to(memory_format=torch.channels_last).clone(),
    "channels_last contiguous": lambda x: x.to(memory_format=torch.channels_last).contiguous(),
    "channels_last like": lambda x: torch.zeros_like(x.to(memory_format=torch.channels_last)),
    "permuted": lambda x: x.permute(3, 1, 0, 2) * 2,
    "permuted with dense": lambda x: x.permute(1, 0, 2, 3) + x.permute(1, 0, 2, 3).contiguous(),
    "permuted clone": lambda x: x.permute(3, 1, 0, 2).clone(),
    "permuted dtype": lambda x: x.permute(3, 1, 0, 2).to(torch.int32),
    "permuted sum": lambda x: x.permute(3, 1, 0, 2).sum(1),
    "softmax": lambda x: x.permute(3, 1, 0, 2).softmax(1),
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "sliced": lambda x: x[:, ::2].exp(),
    "expanded": lambda x: x[:1].expand(4, -1, -1, -1) + 0,
    "empty_like": lambda x: torch.empty_like(x.permute(0, 2, 3, 1)).zero_(),
    "new_zeros": lambda x: x.t_() if x.dim() == 2 else x.permute(1, 0, 2, 3).new_zeros(2, 3),
    "cat": lambda x: torch.cat([x.permute(1, 0, 2, 3)] * 2),
    "convolution": lambda x: torch.nn.functional.conv2d(x, x[:2, :, :2, :2]),
    "convolution of channels_last": lambda x: torch.nn.functional.conv2d(
        x.to(memory_format=torch.channels_last), x[:2, :, :2, :2].contiguous()
    ),
    "pool": lambda x: torch.nn.functional.max_pool2d(x, 2),
    "empty_strided": lambda x: torch.empty_strided((2, 3), (1, 2), device=x.device).zero_(),
    "batch_norm": lambda x: torch.nn.functional.batch_norm(
        x.to(memory_format=torch.channels_last), None, None, training=True
    ),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strides(name: str) -> None:
    same_on_both(lambda device: STRIDES[name](numbers(2, 3, 4, 5, device=device)))


def test_complex_views() -> None:
    def run(device: str) -> Any:
        pairs = numbers(3, 2, device=device)
        z = torch.view_as_complex(pairs)
        z.real.add_(1)
        z.imag.mul_(2)
        product = z * z.conj()
        z.conj()[0].copy_(z[1])
        z.conj().imag[2] = 5
        matrix = z.outer(z).conj().mT @ z.outer(z.conj())
        marked = [z.conj().clone(), z.conj().imag.clone(), z.conj().resolve_conj(), z.conj().imag.tolist()]
        return pairs, product, torch.view_as_real(product), z.conj().imag, torch.view_as_real(z)[..., 0], marked, matrix

    same_on_both(run)


def test_views_of_a_tensor_that_was_never_written() -> None:
    base = torch.empty(3, 4, device="tpu")
    base[1] = 1
    base[:, 2] = 2
    assert base[1].tolist() == [1, 1, 2, 1]
    assert base[:, 2].tolist() == [2, 2, 2]
    assert torch.empty(2, device="tpu").tolist() == [0, 0]


def test_copies_do_not_alias() -> None:
    def run(device: str) -> Any:
        x = numbers(4, 6, device=device)
        copies = [x.clone(), x.detach().clone(), torch.zeros_like(x).copy_(x), x.to(x.device, copy=True), +x, x * 1]
        same = [x.to(x.device), x.float(), x.contiguous(), x.expand(4, 6), x.reshape(4, 6), x.type_as(x)]
        x.fill_(5)
        copies[0][0] = 1
        same[4][1] = 2
        return x, copies, same

    same_on_both(run)


# One step of a random program: (what it does to a list of tensors that share one base).
VIEW_STEPS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.transpose(0, -1),
    lambda x: x[1:] if x.shape[0] > 1 else x,
    lambda x: x[..., ::2],
    lambda x: x[0] if x.dim() > 1 else x,
    lambda x: x.unsqueeze(0),
    lambda x: x.diagonal() if x.dim() > 1 else x,
    lambda x: x.flatten(),
    lambda x: x.unfold(-1, 2, 1) if x.shape[-1] > 2 and x.dim() < 3 else x,
    lambda x: x.narrow(-1, x.shape[-1] // 2, x.shape[-1] - x.shape[-1] // 2),
    lambda x: x.detach(),
]
WRITE_STEPS: list[Callable[[Tensor], Any]] = [
    lambda x: x.add_(1),
    lambda x: x.mul_(-2),
    lambda x: x[..., 0].zero_(),
    lambda x: x.copy_(x.flip(0)),
    lambda x: x.__setitem__(0, 3),
    lambda x: x.clamp_(max=4),
]


@settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 59), st.integers(0, 5)), min_size=3, max_size=8))
def test_random_programs(program: list[tuple[bool, int, int]]) -> None:
    tensors = {device: [numbers(3, 4, device=device)] for device in ("cpu", "tpu")}
    for makes_view, step, which in program:
        for known in tensors.values():
            tensor = known[which % len(known)]
            if makes_view:
                known.append(VIEW_STEPS[step % len(VIEW_STEPS)](tensor))
            elif not torch._debug_has_internal_overlap(tensor):
                WRITE_STEPS[step % len(WRITE_STEPS)](tensor)
        if torch.tpu.eager_mode == "immediate" or not makes_view:
            assert_same(tensors["tpu"], tensors["cpu"])
    assert_same(tensors["tpu"], tensors["cpu"])


def test_parts_of_a_tensor_are_one_program_wherever_they_lie(eager_mode: str) -> None:
    x = numbers(40, 3).to("tpu")
    expected, total = x.cpu(), torch.zeros((), device="tpu")
    counters = torch.tpu.counters()
    for i in range(12):
        if i == 3:
            torch.tpu.synchronize()
            counters.reset()
        rows, column = x[i : i + 5], x[i, 1]
        total += (rows * column).sum() + torch.cat([rows, rows], 1)[2, 4]
        torch.tpu.synchronize()
    assert counters.compiles == 0
    wanted = sum(
        (expected[i : i + 5] * expected[i, 1]).sum() + torch.cat([expected[i : i + 5]] * 2, 1)[2, 4] for i in range(12)
    )
    assert_close(total, wanted)


def test_writes_into_parts_are_one_program_wherever_they_lie() -> None:
    x, y = numbers(40, 3).to("tpu"), numbers(3).to("tpu")
    expected, row = x.cpu(), y.cpu()
    counters = torch.tpu.counters()
    for i in range(1, 12):
        if i == 3:
            counters.reset()
        x[i] = y
        x[i : i + 2, 1].mul_(0.5)
        x[2 * i].fill_(i)
        torch._foreach_add_([x[i + 1]], 1.0)
        expected[i] = row
        expected[i : i + 2, 1].mul_(0.5)
        expected[2 * i].fill_(i)
        expected[i + 1] += 1
    assert counters.compiles == 0
    assert_close(x, expected)


def test_a_part_that_is_read_where_it_is_written(eager_mode: str) -> None:
    def run(device: str) -> Any:
        x = numbers(6, 4).to(device)
        x[:3].add_(x[3:])
        x[3:].copy_(x[:3])
        x[:, :2].mul_(x[:, 2:])
        torch.add(x[1], x[2], out=x[3])
        return x

    same_on_both(run)


TWO: dict[str, Callable[[Tensor, Tensor], Any]] = {
    **{
        name: getattr(Tensor, f"{name}_")
        for name in ("add", "mul", "pow", "remainder", "floor_divide", "fmod", "hypot")
    },
    **{name: getattr(Tensor, f"{name}_") for name in ("clamp_min", "logical_and", "eq", "atan2", "copysign", "xlogy")},
    "clamp": lambda x, y: x.clamp_(min=y),
    "addcmul": lambda x, y: x.addcmul_(y, y),
    "masked_fill": lambda x, y: x.masked_fill_(y > 0, 1.0),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", TWO)
def test_what_is_written_does_not_grow(name: str) -> None:
    base = numbers(6, device="tpu")
    for _ in range(2):  # fake tensors remember the first time
        with pytest.raises(RuntimeError, match="broadcast shape"):
            TWO[name](base[:2], numbers(3, 2, device="tpu"))
    assert base.shape == (6,) and torch.equal(base.cpu(), numbers(6))


def test_out_of_shapes_that_values_decide() -> None:
    def run(device: str) -> Any:
        x, empty = torch.tensor([0.0, 1.0, 2.0], device=device), torch.empty(0, dtype=torch.int64, device=device)
        places = torch.full((2, 1), 7, device=device)
        found = torch.full((2,), 7.0, device=device)
        assert torch.nonzero(x, out=places) is places and torch.nonzero(x, out=empty) is empty
        torch.masked_select(x, x > 0, out=found)
        return places.flatten(), empty.flatten(), found

    same_on_both(run)
