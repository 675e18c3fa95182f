"""`torch.tpu`, modules, optimizers, autocast and random numbers of the device."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device.reference import assert_close, numbers, same_on_both
from torch import Tensor, nn

from wholestep.errors import WholestepError


def test_the_device_module() -> None:
    assert torch.tpu.is_available() and torch.tpu.is_initialized() and torch.tpu.device_count() == 1
    assert torch.tpu.current_device() == 0
    torch.tpu.set_device(0)
    torch.tpu.set_device("tpu:0")
    with torch.tpu.device(0):
        assert torch.zeros(1, device="tpu").device == torch.device("tpu:0")
    assert isinstance(torch.tpu.get_device_name(), str) and torch.tpu.get_device_properties().name
    kept = torch.zeros(1000, device="tpu") + 1
    torch.tpu.synchronize()
    assert torch.tpu.memory_stats()["bytes_in_use"] >= 4000
    assert torch.tpu.max_memory_allocated() >= torch.tpu.memory_allocated() >= kept.nbytes
    torch.tpu.empty_cache()
    assert torch.tpu.is_bf16_supported()
    assert torch.get_device_module("tpu") is torch.tpu


def test_devices_that_are_not_there() -> None:
    assert torch.device("tpu:3").index == 3
    for make in (
        lambda: torch.zeros(2, device="tpu:3"),
        lambda: torch.tensor([1.0], device="tpu:3"),
        lambda: torch.zeros(2).to("tpu:3"),
        lambda: torch.zeros(2, device="tpu").to("tpu:1"),
        lambda: nn.Linear(2, 2).to("tpu:3"),
        lambda: torch.empty_strided((2,), (1,), device="tpu:3"),
        lambda: torch.zeros(2, device="tpu").new_zeros(2, device="tpu:3"),
        lambda: torch.arange(3, device="tpu:3"),
        lambda: torch.randn(3, device="tpu:3"),
    ):
        with pytest.raises(WholestepError, match="DeviceMesh"):
            make()
    with pytest.raises(RuntimeError, match="tpu:0"):
        torch.tpu.set_device(3)


def test_accelerator() -> None:
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_allocated() <= torch.accelerator.max_memory_allocated()
    device = torch.accelerator.current_accelerator()
    assert torch.ones(2, device=device).sum().item() == 2


def test_moves() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).tpu()
    assert all(tensor.is_tpu for tensor in module.state_dict().values())
    assert not module.cpu()[0].weight.is_tpu
    x = torch.zeros(2)
    assert x.tpu().is_tpu and x.tpu("tpu:0").device == torch.device("tpu:0") and not x.is_tpu
    same = x.tpu()
    assert same.tpu() is same and same.to("tpu") is same
    with torch.device("tpu"):
        assert nn.Linear(2, 2).weight.is_tpu and torch.arange(3).is_tpu and torch.tensor([1]).is_tpu
    assert module.to(torch.bfloat16).tpu()[0].weight.dtype == torch.bfloat16
    meta = nn.Linear(2, 2, device="meta").to_empty(device="tpu")
    assert meta.weight.is_tpu
    with pytest.raises(RuntimeError, match="same device"):
        module(torch.zeros(2, 2, dtype=torch.bfloat16))


@pytest.mark.usefixtures("eager_mode")
def test_random_numbers() -> None:
    def draws() -> list[Tensor]:
        x = torch.empty(100, device="tpu")
        return [
            torch.rand(100, device="tpu"),
            torch.randn(100, device="tpu"),
            torch.randint(0, 1000, (100,), device="tpu"),
            torch.randperm(100, device="tpu"),
            F.dropout(torch.ones(100, device="tpu")),
            x.normal_(1, 2).clone(),
            x.uniform_(-1, 0).clone(),
            torch.bernoulli(torch.full((100,), 0.5, device="tpu")),
        ]

    torch.manual_seed(5)
    first, second = draws(), draws()
    torch.manual_seed(5)
    for one, other, again in zip(first, second, draws(), strict=True):
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
    torch.tpu.manual_seed(5)
    assert torch.equal(torch.rand(100, device="tpu"), first[0])
    state = torch.tpu.get_rng_state()
    wanted = torch.rand(3, device="tpu")
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="tpu"), wanted)
    state = torch.tpu.get_rng_state()
    with torch.random.fork_rng(device_type="tpu"):
        torch.manual_seed(1)
        torch.rand(3, device="tpu")
    assert torch.equal(torch.tpu.get_rng_state(), state)
    assert torch.tpu.initial_seed() == 5
    with pytest.raises(ValueError, match="uint8"):
        torch.tpu.set_rng_state(torch.zeros(3))
    assert abs(first[1].mean().item()) < 0.5 and first[0].min().item() >= 0 and first[0].max().item() < 1


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {"lr": 0.1}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}),
    "capturable": (torch.optim.AdamW, {"lr": 0.1, "capturable": True}),
    "a tensor as learning rate": (torch.optim.AdamW, {"lr": torch.tensor(0.1)}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.5, "centered": True}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 0.1}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 0.1}),
    "Adamax": (torch.optim.Adamax, {"lr": 0.1}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.1}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.1}),
    "Rprop": (torch.optim.Rprop, {"lr": 0.1}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.1}),
    "Muon": (torch.optim.Muon, {"lr": 0.1}),
    "LBFGS": (torch.optim.LBFGS, {"lr": 0.1, "max_iter": 3}),
}


def steps(device: str, name: str, foreach: bool | None) -> list[Tensor]:
    """A matrix after three steps, and the losses."""
    make, options = OPTIMIZERS[name]
    if foreach is not None:
        options = {**options, "foreach": foreach}
    weight = (numbers(3, 4) / 4).to(device).requires_grad_()
    if options.get("capturable") and device == "cpu":  # which the CPU has not, and needs not
        options = {**options, "capturable": False}
    optimizer = make([weight], **options)
    x = numbers(5, 3, device=device)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (torch.tanh(x @ weight) - 0.3).square().mean()
        loss.backward()
        return loss

    losses = [optimizer.step(closure) for _ in range(3)]
    return [weight, *losses]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str, eager_mode: str) -> None:
    make, _ = OPTIMIZERS[name]
    has_foreach = make not in (torch.optim.LBFGS, torch.optim.Muon) and name != "a tensor as learning rate"
    computes_in = torch.bfloat16 if make is torch.optim.Muon else torch.float32
    wanted = steps("cpu", name, False if has_foreach else None)
    for foreach in (False, True) if has_foreach else (None,):
        for got, value in zip(steps("tpu", name, foreach), wanted, strict=True):
            assert_close(got.to(computes_in), value.to(computes_in))


@pytest.mark.usefixtures("eager_mode")
def test_schedules_averages_and_scaling() -> None:
    def run(device: str) -> Any:
        module = nn.Linear(3, 2).to(device)
        with torch.no_grad():
            module.weight.copy_(numbers(2, 3))
            module.bias.zero_()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        average = torch.optim.swa_utils.AveragedModel(
            module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.mse_loss(module(numbers(4, 3, device=device)), numbers(4, 2, device=device))
            loss.backward()
            norm = nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            average.update_parameters(module)
        return module.weight, module.bias, loss, norm, average.module.weight, schedule.get_last_lr()

    same_on_both(run)


AUTOCAST = {
    "matmul": (lambda x: x @ x, torch.bfloat16),
    "linear": (lambda x: F.linear(x, x, x[0]), torch.bfloat16),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), torch.bfloat16),
    "convolution": (lambda x: F.conv1d(x[None], x[..., None]), torch.bfloat16),
    "attention": (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]), torch.bfloat16),
    "softmax": (lambda x: (x @ x).softmax(-1), torch.float32),
    "layer_norm": (lambda x: F.layer_norm(x @ x, (4,)), torch.float32),
    "loss": (lambda x: F.mse_loss(x @ x, x @ x), torch.float32),
    "cross_entropy": (lambda x: F.cross_entropy(x @ x, torch.arange(4, device=x.device)), torch.float32),
    "sum": (lambda x: (x @ x).sum(), torch.float32),
    "power": (lambda x: (x @ x).abs() ** 0.5, torch.float32),
    "relu": (lambda x: (x @ x).relu(), torch.bfloat16),
    "product": (lambda x: (x @ x) * x, torch.float32),
    "cat": (lambda x: torch.cat([x @ x, x]), torch.float32),
    "stack of narrow": (lambda x: torch.stack([x @ x, x @ x]), torch.bfloat16),
    "integers": (lambda x: x.int() + 1, torch.int32),
    "in place": (lambda x: (x @ x).add_(x), torch.bfloat16),
    "disabled": (lambda x: _without(x), torch.float32),
}


def _without(x: Tensor) -> Tensor:
    with torch.autocast("tpu", enabled=False):
        return x @ x


@pytest.mark.usefixtures("eager_mode")
@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast(name: str) -> None:
    function, dtype = AUTOCAST[name]
    x = numbers(4, 4, device="tpu").requires_grad_()
    with torch.autocast("tpu"):
        out = function(x)
    assert out.dtype == dtype
    if dtype.is_floating_point:
        out.float().sum().backward()
        assert x.grad.dtype == torch.float32
    wanted = function(x.detach()).float().cpu()
    assert (out.detach().float().cpu() - wanted).norm() <= 2e-2 * wanted.norm() + 1e-6
    assert (x @ x).dtype == torch.float32


def test_autocast_of_another_dtype_and_what_it_refuses() -> None:
    x = torch.rand(4, 4, device="tpu")
    with torch.autocast("tpu", dtype=torch.float16):
        assert (x @ x).dtype == torch.float16
    with torch.autocast("tpu"), pytest.raises(RuntimeError, match="with_logits"):
        F.binary_cross_entropy(x, x)
    with torch.autocast("cpu"):
        assert (x @ x).dtype == torch.float32
    assert torch.get_autocast_dtype("tpu") == torch.bfloat16

    @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    with torch.autocast("tpu"):
        assert forward(torch.nn.Module(), x.bfloat16()).dtype == torch.float32


@pytest.mark.filterwarnings("ignore")
def test_collectives_in_eager_are_refused() -> None:
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        x = torch.ones(2, device="tpu")
        for call in (
            lambda: distributed.all_reduce(x),
            lambda: distributed.broadcast(x, 0),
            lambda: distributed.all_gather([torch.empty_like(x)], x),
            lambda: distributed._functional_collectives.all_reduce(x, "sum", distributed.group.WORLD),
        ):
            with pytest.raises(WholestepError, match="capture the step"):
                call()
        on_cpu = torch.ones(2)
        distributed.all_reduce(on_cpu)
        assert on_cpu.tolist() == [1, 1]
    finally:
        distributed.destroy_process_group()


@pytest.mark.usefixtures("eager_mode")
def test_modules_compute_as_on_the_cpu() -> None:
    modules: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "convolution": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), (2, 3, 6, 6)),
        "transformer": (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
        "recurrent": (nn.LSTM(4, 5, batch_first=True), (2, 3, 4)),
        "gated": (nn.GRU(4, 5, bidirectional=True), (3, 2, 4)),
        "norms": (nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm1d(4), nn.Flatten(), nn.RMSNorm(12)), (2, 4, 3)),
    }
    for name, (module, shape) in modules.items():
        results = []
        for device in ("cpu", "tpu"):
            module = module.to(device).train()
            x = numbers(*shape, device=device).requires_grad_()
            module.zero_grad()
            out = module(x)
            out = out[0] if isinstance(out, tuple) else out
            (out * out.detach().cos()).sum().backward()
            results.append([out, x.grad, *(p.grad for p in module.parameters())])
        for wanted, got in zip(*results, strict=True):
            scale = max(wanted.detach().abs().max().item(), 1e-3)
            assert (got.detach().cpu() - wanted.detach()).abs().max() <= 1e-5 * max(scale, 1), name


def test_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.randn(3, 3, device="tpu", requires_grad=True)
        (x @ x).sum().backward()
