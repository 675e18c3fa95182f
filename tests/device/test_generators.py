"""`torch.Generator` for random operators on the device."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor

import wholestep
from wholestep.errors import GraphError

pytestmark = pytest.mark.usefixtures("eager_mode")

DRAWS: dict[str, Callable[[Generator], Tensor]] = {
    "randn": lambda g: torch.randn(9, device="tpu", generator=g),
    "randint": lambda g: torch.randint(1000, (9,), device="tpu", generator=g),
    "randperm": lambda g: torch.randperm(9, device="tpu", generator=g),
    "uniform_": lambda g: torch.empty(9, device="tpu").uniform_(generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(99, device="tpu"), 9, generator=g),
    "poisson": lambda g: torch.poisson(torch.full((9,), 50.0, device="tpu"), generator=g),
    "trunc_normal_": lambda g: torch.nn.init.trunc_normal_(torch.empty(9, device="tpu"), generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("device", ["tpu", "cpu"])
def test_a_seed_gives_its_numbers(name: str, device: str) -> None:
    first, second = (torch.Generator(device).manual_seed(3) for _ in range(2))
    drawn, again, next_drawn = DRAWS[name](first), DRAWS[name](second), DRAWS[name](second)
    assert torch.equal(drawn.cpu(), again.cpu())
    assert not torch.equal(again.cpu(), next_drawn.cpu())


def test_it_leaves_the_devices_own_generator_alone() -> None:
    torch.manual_seed(0)
    state = torch.tpu.get_rng_state()
    DRAWS["randn"](torch.Generator("tpu")).cpu()
    assert torch.equal(state, torch.tpu.get_rng_state())


def test_its_state() -> None:
    generator = torch.Generator("tpu")
    state = generator.get_state()
    drawn = DRAWS["randn"](generator)
    generator.set_state(state)
    assert torch.equal(drawn.cpu(), DRAWS["randn"](generator).cpu())


def test_generators_are_pytorchs() -> None:
    assert torch.Generator("tpu").device == torch.device("tpu", 0)
    assert torch.Generator().device == torch.device("cpu")
    assert isinstance(torch.default_generator, torch.Generator)
    assert isinstance(pickle.loads(pickle.dumps(torch.Generator())), torch.Generator)


def test_captured_steps_refuse_one() -> None:
    generator = torch.Generator("tpu")
    step = wholestep.capture_step(lambda: DRAWS["randn"](generator))
    step()
    with pytest.raises(GraphError, match="leave `generator` out"):
        step()


def test_a_loader_under_the_device() -> None:
    with torch.device("tpu"):
        batches = [batch.tolist() for batch in torch.utils.data.DataLoader([1, 2, 3], 2)]
        drawn = torch.empty(1000, dtype=torch.int64).random_()
    assert batches == [[1, 2], [3]]
    assert drawn.min() >= 0 and drawn.max() > 2**30
