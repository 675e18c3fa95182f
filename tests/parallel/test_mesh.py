"""The mesh's text form, and the torch mesh that stands in for it while a step is traced."""

from __future__ import annotations

import pytest
import torch.distributed as dist
import torch.distributed.config as distributed_config
from torch.testing._internal.distributed.fake_pg import FakeStore

from wholestep.errors import ConfigError
from wholestep.parallel import Mesh, simulated_device_mesh


@pytest.mark.parametrize(
    ("text", "mesh"),
    [
        ("fsdp=8", Mesh(fsdp=8)),
        ("replicate=2,fsdp=4", Mesh(replicate=2, fsdp=4)),
        ("fsdp=4, replicate = 2", Mesh(replicate=2, fsdp=4)),
        ("replicate=2", Mesh(replicate=2)),
        ("fsdp=1", Mesh()),
    ],
)
def test_parse(text: str, mesh: Mesh) -> None:
    assert Mesh.parse(text) == mesh
    assert Mesh.parse(str(mesh)) == mesh


def test_text() -> None:
    assert str(Mesh(replicate=2, fsdp=4)) == "replicate=2,fsdp=4"
    assert str(Mesh(replicate=2)) == "replicate=2"
    assert str(Mesh()) == "fsdp=1"


def test_size_and_axes() -> None:
    mesh = Mesh(replicate=2, fsdp=4)
    assert mesh.size == 8
    assert list(mesh.axes.items()) == [("replicate", 2), ("fsdp", 4)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fspd=8", r"mesh 'fspd=8': no axis 'fspd'; axes are replicate, fsdp; did you mean 'fsdp'\?"),
        ("", r"mesh '': no axis ''; axes are replicate, fsdp"),
        ("fsdp=2,", r"no axis ''"),
        ("fsdp=2,fsdp=4", r"axis 'fsdp' is given twice"),
        ("fsdp", r"axis 'fsdp' needs a size, as in fsdp=8"),
        ("fsdp=", r"axis 'fsdp' needs a size"),
        ("fsdp=-2", r"axis 'fsdp' needs a size"),
        ("fsdp=two", r"axis 'fsdp' needs a size"),
        ("fsdp=2.5", r"axis 'fsdp' needs a size"),
        ("fsdp=0", r"mesh axis 'fsdp' has size 0; a size is at least 1"),
    ],
)
def test_parse_errors(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Mesh.parse(text)


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(fsdp=8), Mesh(replicate=16, fsdp=256)], ids=str)
def test_a_simulated_mesh_has_any_size(mesh: Mesh) -> None:
    with simulated_device_mesh(mesh) as simulated:
        assert simulated.mesh_dim_names == tuple(mesh.axes)
        assert simulated.shape == tuple(mesh.axes.values())
        assert distributed_config.compile_on_one_rank


def test_a_simulated_mesh_cleans_up() -> None:
    before = distributed_config.compile_on_one_rank
    with pytest.raises(ZeroDivisionError), simulated_device_mesh(Mesh(fsdp=2)):
        raise ZeroDivisionError
    assert not dist.is_initialized()
    assert distributed_config.compile_on_one_rank == before
    with simulated_device_mesh(Mesh(fsdp=4)) as simulated:
        assert simulated.size() == 4
    assert not dist.is_initialized()


def test_a_simulated_mesh_does_not_replace_a_process_group() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(RuntimeError, match="process group exists already"), simulated_device_mesh(Mesh(fsdp=2)):
            pass
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()
