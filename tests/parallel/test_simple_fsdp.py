"""`simple_fsdp` on its own: what it makes of a module, without processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.func import functional_call

from wholestep.parallel import Mesh, Policy, simple_fsdp, simulated_device_mesh, storage_shape

HYBRID = Mesh(replicate=2, fsdp=4)


class Tied(nn.Module):
    """Two linears of one weight, and a scale without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.frozen = nn.Parameter(torch.arange(3.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) * self.scale + self.frozen.sum()


@pytest.fixture(params=[Mesh(fsdp=4), HYBRID], ids=str)
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    with simulated_device_mesh(request.param) as simulated:
        yield simulated


@pytest.mark.parametrize(
    ("shape", "shards", "stored"),
    [((8, 3), 4, (8, 3)), ((5, 3), 4, (8, 3)), ((1,), 4, (4,)), ((), 4, (4,)), ((), 1, (1,)), ((3, 7), 1, (3, 7))],
)
def test_storage_shape(shape: tuple[int, ...], shards: int, stored: tuple[int, ...]) -> None:
    assert storage_shape(shape, shards) == stored


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_parameters_are_shards(mesh: DeviceMesh, device: str) -> None:
    with torch.device(device):
        module = simple_fsdp(Tied(), mesh)
    stored = {"scale": (4,), "frozen": (4,), "first.weight": (8, 5), "first.bias": (8,)}
    assert {name: tuple(parameter.shape) for name, parameter in module.named_parameters()} == stored
    for name, parameter in module.named_parameters():
        assert isinstance(parameter, nn.Parameter) and isinstance(parameter.data, DTensor)
        assert parameter.placements == (*[Replicate()] * (mesh.ndim - 1), Shard(0))
        assert parameter.to_local().shape == (stored[name][0] // 4, *stored[name][1:])
        assert parameter.device.type == device
        assert parameter.requires_grad == (name != "frozen")


def test_reading_gives_the_parameters_own_shape(mesh: DeviceMesh) -> None:
    module = simple_fsdp(Tied(), mesh)
    assert module.first.weight.shape == module.second.weight.shape == (5, 5)
    assert module.first.bias.shape == (5,)
    assert module.scale.shape == ()
    assert not isinstance(module.first.weight, DTensor)


def test_a_rank_holds_its_rows_of_the_padded_parameter() -> None:
    linear = nn.Linear(3, 5, bias=False)
    weight = linear.weight.detach().clone()
    with simulated_device_mesh(Mesh(fsdp=3)) as mesh:  # as rank 0
        simple_fsdp(linear, mesh)
        torch.testing.assert_close(linear._parameters["weight"].to_local(), weight[:2])


def test_the_policy_sets_the_dtypes(mesh: DeviceMesh) -> None:
    module = simple_fsdp(Tied(), mesh, Policy(gather_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert module.first.weight.dtype == module.scale.dtype == torch.bfloat16
    result = module(torch.ones(2, 5, dtype=torch.bfloat16))
    assert result.dtype == torch.bfloat16
    result.sum().backward()
    assert module._parameters["scale"].grad.dtype == torch.float32


def test_by_default_the_parameters_own_dtype(mesh: DeviceMesh) -> None:
    module = simple_fsdp(Tied().bfloat16(), mesh)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}
    assert module.first.weight.dtype == torch.bfloat16


def test_a_tied_weight_stays_one_parameter(mesh: DeviceMesh) -> None:
    module = simple_fsdp(Tied(), mesh)
    assert "second.weight" not in dict(module.named_parameters())
    assert module.first._parameters["weight"] is module.second._parameters["weight"]


def test_one_device_changes_no_result() -> None:
    module, x = Tied(), torch.randn(2, 5)
    expected = module(x)
    with simulated_device_mesh(Mesh()) as mesh:
        result = simple_fsdp(module, mesh)(x)
        torch.testing.assert_close(result, expected)


def test_functional_call_replaces_the_parameters(mesh: DeviceMesh) -> None:
    module = simple_fsdp(nn.Linear(3, 4, bias=False), mesh)
    twice = {"weight": module._parameters["weight"] * 2}
    x = torch.ones(1, 3)
    local = functional_call(module, twice, x)[0, 0]
    torch.testing.assert_close(local, 2 * module(x)[0, 0])


def test_the_module_is_still_of_its_class(mesh: DeviceMesh) -> None:
    module = Tied()
    assert simple_fsdp(module, mesh) is module
    assert isinstance(module, Tied) and isinstance(module.first, nn.Linear)
    assert type(module).__name__ == "ShardedTied"
    assert type(nn.Linear(1, 1)) is nn.Linear and isinstance(nn.Linear(1, 1).weight, nn.Parameter)


def test_sharding_twice_is_refused(mesh: DeviceMesh) -> None:
    module = simple_fsdp(Tied(), mesh)
    with pytest.raises(ValueError, match=r"scale is a DTensor; shard a module once, and before other layouts"):
        simple_fsdp(module, mesh)
    with pytest.raises(ValueError, match=r"outer\.first\.weight is a DTensor|outer\.scale is a DTensor"):
        simple_fsdp(nn.ModuleDict({"outer": module}), mesh)
