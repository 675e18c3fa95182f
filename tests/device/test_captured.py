"""A captured step: what it does in calls that run no Python, and what it refuses."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from device import reference
from torch import Tensor, nn

import wholestep
from wholestep.errors import DataDependentError, GraphError


def numbers(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).to("tpu")


def test_state_arguments_and_results() -> None:
    total, calls = numbers(2, 3), 0

    @wholestep.capture_step
    def step(x: Tensor, scale: float) -> dict[str, Tensor]:
        nonlocal calls
        calls += 1
        total[0].add_(x * scale)
        return {"view": total.t()[1], "new": (x + 1)[None].t(), "same": total}

    expected = total.cpu()
    for call in range(6):
        x = numbers(3) * (call + 1)
        result = step(x, 2.0)
        expected[0] += x.cpu() * 2
        assert torch.equal(total.cpu(), expected)
        assert torch.equal(result["new"].cpu(), (x.cpu() + 1)[None].t())
        assert torch.equal(result["same"].cpu(), expected)
        assert torch.equal(result["view"].cpu(), expected.t()[1])
    assert calls == 3
    step(numbers(3), 3.0)
    assert calls == 4  # other static arguments are another step


def test_results_of_earlier_calls_stay() -> None:
    step = wholestep.capture_step(lambda x: x * 2)
    results = [step(numbers(2) + i) for i in range(6)]
    for i, result in enumerate(results):
        assert torch.equal(result.cpu(), (numbers(2).cpu() + i) * 2)


def test_what_others_hold_is_not_donated() -> None:
    state = numbers(3)
    held = []

    @wholestep.capture_step
    def step() -> None:
        state.add_(1)

    for _ in range(5):
        held.append(state.clone())
        step()
    assert [int(each[0]) for each in held] == [1, 2, 3, 4, 5]


def test_gradients_are_replaced() -> None:
    model = nn.Linear(3, 2).to("tpu")

    @wholestep.capture_step
    def step(x: Tensor) -> Tensor:
        model.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    for call in range(5):
        x = numbers(4, 3) / (call + 1)
        loss = step(x)
        gradients = [parameter.grad.cpu() for parameter in model.parameters()]
        model.zero_grad()
        expected = model(x).square().sum()
        expected.backward()
        assert torch.allclose(loss.cpu(), expected.detach().cpu())
        for gradient, parameter in zip(gradients, model.parameters(), strict=True):
            assert torch.allclose(gradient, parameter.grad.cpu(), rtol=1e-5)


def test_draws_differ_from_call_to_call_and_repeat_with_the_seed() -> None:
    step = wholestep.capture_step(lambda x: torch.nn.functional.dropout(x))

    def draws() -> list[Tensor]:
        torch.tpu.manual_seed(3)
        return [step(torch.ones(64, device="tpu")).cpu() for _ in range(5)]

    draws()
    first, second = draws(), draws()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(first))


def test_a_value_is_not_read() -> None:
    step = wholestep.capture_step(lambda x: x * 2 if x.sum() > 0 else x)
    step(numbers(3))
    with pytest.raises(GraphError, match=r"test_captured.py:\d+: a value is read"):
        step(numbers(3))


def test_a_learning_rate_that_is_read_is_not() -> None:
    weight = nn.Parameter(torch.ones(2, device="tpu"))
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(1.0, device="tpu"))

    @wholestep.capture_step
    def step() -> None:
        weight.sum().backward()
        optimizer.step()

    step()
    with pytest.raises(GraphError, match=rf"{__file__}.*fused=True"):
        step()


def test_the_cpu_is_not_written() -> None:
    model = nn.Linear(3, 2).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())

    @wholestep.capture_step
    def step(x: Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    step(numbers(4, 3))
    with pytest.raises(GraphError, match=r"writes into a CPU tensor.*capturable=True"):
        step(numbers(4, 3))


def test_a_number_does_not_change() -> None:
    rates = iter((0.1, 0.2, 0.3, 0.4, 0.4, 0.4))

    @wholestep.capture_step
    def step(x: Tensor) -> Tensor:
        return x * next(rates)

    for _ in range(2):
        step(numbers(3))
    with pytest.raises(GraphError, match=r"was given 0.2 and then 0.3; .* make it a tensor on the device"):
        step(numbers(3))
    for _ in range(4):  # and it starts again
        assert torch.equal(step(numbers(3)).cpu(), numbers(3).cpu() * 0.4)


RATE = 0.5


def test_data_from_the_cpu_does_not_change() -> None:
    data = iter(torch.arange(9.0).split(3))

    @wholestep.capture_step
    def step() -> Tensor:
        return next(data).to("tpu") * 2

    step()
    step()
    with pytest.raises(GraphError, match="pass it as an argument"):
        step()


def test_tensors_from_elsewhere_are_refused() -> None:
    with pytest.raises(GraphError, match="on cpu: move it to the tpu device first"):
        wholestep.capture_step(lambda x: x)(torch.ones(2))


@pytest.mark.parametrize("part", [False, True], ids=["whole", "part"])
def test_an_argument_that_is_written(part: bool) -> None:
    calls = 0

    @wholestep.capture_step
    def step(x: Tensor) -> None:
        nonlocal calls
        calls += 1
        x.mul_(2).add_(1)

    for call in range(6):
        base = numbers(4) + call
        expected = base.cpu()
        step(base[1:3] if part else base)
        (expected[1:3] if part else expected).mul_(2).add_(1)
        assert torch.equal(base.cpu(), expected)
    assert calls == (4 if part else 3)


def test_results_that_are_arguments_or_views_of_them() -> None:
    step = wholestep.capture_step(lambda x, y: (x, y[1:], x.t()))
    for call in range(6):
        x, y = numbers(2, 3) + call, numbers(3) * call
        same, tail, turned = step(x, y)
        assert torch.equal(same.cpu(), x.cpu()) and torch.equal(tail.cpu(), y[1:].cpu())
        assert torch.equal(turned.cpu(), x.t().cpu())
        same.add_(1)
        assert torch.equal(turned.cpu(), x.t().cpu()) and x[0, 0] == 2 + call


def test_what_a_step_does_to_the_tensor_that_it_is_given_a_part_of() -> None:
    text = numbers(4, 6)

    @wholestep.capture_step
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        text.add_(1)  # which `x` is a part of
        return x, x * 2

    for _ in range(5):
        same, twice = step(text[1])
        assert torch.equal(twice.cpu(), 2 * text[1].cpu())
        same.add_(1)
        assert torch.equal(same.cpu(), text[1].cpu())


def test_parts_of_a_tensor_are_one_program_wherever_they_lie() -> None:
    calls, text = 0, numbers(4, 30)

    @wholestep.capture_step
    def step(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return (x * y).sum(1)

    for start in range(0, 24, 4):
        piece = text[:, start : start + 5]
        result = step(piece[:, :-1], piece[:, 1:])
        assert torch.equal(result.cpu(), (piece[:, :-1].cpu() * piece[:, 1:].cpu()).sum(1))
    assert calls == 3


def test_one_tensor_twice_is_another_program_than_two() -> None:
    step = wholestep.capture_step(lambda x, y: x + 2 * y)
    for call in range(4):
        x, y = numbers(3) + call, numbers(3) * call
        assert torch.equal(step(x, x).cpu(), 3 * x.cpu())
        assert torch.equal(step(x, y).cpu(), x.cpu() + 2 * y.cpu())


def linear(device: str) -> nn.Linear:
    module = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(reference.numbers(*parameter.shape) / 4)
    return module.to(device)


def test_gradients_that_are_set_to_zero() -> None:
    def train(device: str) -> list[Tensor]:
        module = linear(device)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

        def step(first: Tensor, second: Tensor) -> Tensor:
            optimizer.zero_grad(set_to_none=False)
            for x in (first, second):
                loss = module(x).square().mean()
                loss.backward()
            optimizer.step()
            return loss

        run = wholestep.capture_step(step) if device == "tpu" else step
        batches = [(reference.numbers(4, 3) + i / 8).to(device) for i in range(10)]
        losses = [run(*batches[i : i + 2]) for i in range(0, 10, 2)]
        return [*losses, *module.parameters(), *(parameter.grad for parameter in module.parameters())]

    for got, wanted in zip(train("tpu"), train("cpu"), strict=True):
        reference.assert_close(got, wanted)


@pytest.mark.parametrize("fails_in", [2, 3])
def test_a_step_that_fails_changes_nothing(fails_in: int) -> None:
    def train(fails: bool) -> list[Tensor]:
        module = linear("tpu")
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        calls = 0

        @wholestep.capture_step
        def step(x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            if fails and calls == fails_in:
                raise KeyboardInterrupt
            return loss

        x = reference.numbers(4, 3, device="tpu")
        results = []
        for call in range(1, 6):
            if fails and call == fails_in:
                with pytest.raises(KeyboardInterrupt):
                    step(x)
            results += [step(x), *(parameter.detach().cpu() for parameter in module.parameters())]
        return results

    for got, wanted in zip(train(True), train(False), strict=True):
        reference.assert_close(got, wanted)


def test_a_shape_that_values_decide_is_refused_with_the_line() -> None:
    @wholestep.capture_step
    def step(x: Tensor) -> Tensor:
        return x[x > 0].sum()

    step(reference.numbers(4, device="tpu"))
    with pytest.raises(DataDependentError, match=r"test_captured\.py:\d+: the shape .* torch\.where"):
        step(reference.numbers(4, device="tpu"))


@pytest.mark.parametrize("change", ["nothing", "data", "optimizer", "gradients"])
def test_what_it_reads_is_replaced_later(change: str) -> None:
    def train(device: str) -> list[float]:
        module = linear(device)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)

        def step(x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad(set_to_none=change != "gradients")
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = wholestep.capture_step(step) if device == "tpu" else step
        losses, calls = [], 0
        for number in range(10):
            if number == 5:
                kept = copy.deepcopy(optimizer.state_dict())
            if number == 6 and change == "data":
                module.weight.data = module.weight.data * 0.5
            if number == 6 and change == "optimizer":
                optimizer.load_state_dict(kept)
            if number == 6 and change == "gradients":
                optimizer.zero_grad()
            losses.append(run((reference.numbers(4, 3) + number / 8).to(device)).item())
        assert device == "cpu" or calls == (3 if change == "nothing" else 6)
        return losses

    assert train("tpu") == pytest.approx(train("cpu"), rel=1e-5)


def test_arguments_get_their_gradients() -> None:
    weight = torch.ones(3, device="tpu", requires_grad=True)

    @wholestep.capture_step
    def step(x: Tensor) -> None:
        (x * x * weight).sum().backward()

    arguments = [torch.full((3,), float(i), device="tpu", requires_grad=True) for i in range(6)]
    for x in arguments:
        step(x)
    for i, x in enumerate(arguments):  # not before: a call leaves those of earlier ones alone
        assert x.grad.tolist() == [2.0 * i] * 3
    assert weight.grad.tolist() == [55.0] * 3


def test_an_argument_that_has_a_gradient_is_refused() -> None:
    step = wholestep.capture_step(lambda x: (x * x).sum().backward())
    x = torch.ones(3, device="tpu", requires_grad=True)
    step(x)
    step(x)
    with pytest.raises(GraphError, match="set it to None before"):
        step(x)
    assert x.grad.tolist() == [4.0] * 3  # as it was


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_cpu_tensor_that_it_copies_may_change(dtype: torch.dtype) -> None:
    offset, start = torch.ones(3), torch.zeros(3, device="tpu")
    step = wholestep.capture_step(lambda: start + offset.to("tpu", dtype))
    for call in range(9):
        if call in (4, 5, 8):
            offset.add_(1)
        assert step().tolist() == offset.tolist()


def test_what_a_step_wrote_that_differs_from_the_last_is_undone() -> None:
    weight, numbers = torch.zeros(3, device="tpu"), iter(range(1, 9))
    step = wholestep.capture_step(lambda: weight.add_(next(numbers)))
    step()
    step()
    with pytest.raises(GraphError, match="keeps its numbers"):
        step()
    assert weight.tolist() == [3.0] * 3


@pytest.mark.usefixtures("eager_mode")
@pytest.mark.parametrize("capture", [False, True], ids=["eager", "captured"])
def test_views_of_another_dtype(capture: bool) -> None:
    """A rotation by complex numbers, writes through views of either kind, and reads of them between calls."""

    def run(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(3, 4).to(device))
        pairs, x = torch.randn(4, 2).to(device), torch.randn(5, 3).to(device)
        angles = torch.polar(torch.ones(5, 2), torch.arange(10.0).reshape(5, 2)).to(device)

        def step(x: Tensor) -> tuple[Tensor, ...]:
            weight.grad = None
            rotated = torch.view_as_real(torch.view_as_complex((x @ weight).view(5, 2, 2)) * angles).flatten(1)
            seen = torch.view_as_complex(pairs)
            seen.mul_(1j)
            pairs.add_(1)
            spectrum = torch.fft.rfft(rotated).abs().sum()
            loss = (rotated**2 * torch.arange(4.0, device=device)).mean() + spectrum * 0.01
            loss.backward()
            return loss.detach(), torch.view_as_real(seen * 2), rotated.detach(), x.view(torch.int32) + 1

        if capture and device == "tpu":
            step = wholestep.capture_step(step)
        results = []
        for call in range(6):
            results += [*step(x), pairs, weight.grad]
            if call == 3:
                results += [torch.view_as_complex(pairs) + 1, x.view(torch.int32)]
            results = [x.detach().cpu().clone() for x in results]
        return results

    for ours, theirs in zip(run("tpu"), run("cpu"), strict=True):
        reference.assert_close(ours, theirs)


def test_a_captured_step_in_another() -> None:
    inner = wholestep.capture_step(lambda x: x * 2)
    outer = wholestep.capture_step(lambda x: inner(x) + 1)
    for call in range(5):
        assert torch.equal(outer(numbers(3) + call).cpu(), (numbers(3).cpu() + call) * 2 + 1)


def test_arguments_of_other_kinds() -> None:
    step = wholestep.capture_step(lambda x, other: x * 2)
    with pytest.raises(GraphError, match="given a set: it takes tensors"):
        step(numbers(3), {1})
    x = numbers(2)
    step = wholestep.capture_step(torch.full_like)
    for number in (0.0, 0.0, 0.0, -0.0, float("nan"), float("nan"), float("nan")):
        assert torch.equal(step(x, number).cpu().view(torch.int32), torch.full((2,), number).view(torch.int32))
