"""What a mesh can do at best."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from wholestep.parallel import Mesh
from wholestep.xla import rates
from wholestep.xla.devices import device_mesh
from wholestep.xla.rates import peak_of, rates_of


def mesh_of(kind: str, devices: int) -> SimpleNamespace:
    """What `peak_of` reads of a mesh, for devices that are not here."""
    device = SimpleNamespace(platform="tpu", device_kind=kind)
    return SimpleNamespace(devices=np.full(devices, device), size=devices)


@pytest.mark.parametrize(
    ("kind", "devices", "flops"),
    [("TPU v5 lite", 4, 4 * 197e12), ("TPU v6 lite", 8, 8 * 918e12), ("TPU7x", 8, 4 * 2307e12)],
)
def test_the_peak_of_a_mesh_is_its_chips_together(kind: str, devices: int, flops: float) -> None:
    peak = peak_of(mesh_of(kind, devices))
    assert peak is not None
    assert peak.flops == pytest.approx(flops)
    assert "bf16" in peak.source


def test_an_unknown_device_has_no_peak() -> None:
    assert peak_of(mesh_of("TPU v99", 4)) is None


def test_the_rates_of_a_device_are_its_share_of_a_chip() -> None:
    assert rates_of(mesh_of("TPU7x", 8)).hbm_bytes_per_second == pytest.approx(7380e9 / 2)
    assert rates_of(mesh_of("TPU v6 lite", 8)).flops_per_second == pytest.approx(918e12)


def test_virtual_devices_share_one_measured_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_measured_cpu_peak", lambda: 5e10)
    one, eight = peak_of(device_mesh(Mesh())), peak_of(device_mesh(Mesh(fsdp=8)))
    assert one == eight
    assert one is not None and one.flops == 5e10 and "measured" in one.source


def test_the_measurement_is_plausible() -> None:
    assert 1e9 < rates._measured_cpu_peak() < 1e14
