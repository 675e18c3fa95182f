"""`torch.tpu`: what PyTorch and its users ask a device's module."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import jax

    from wholestep.device.eager import Counters, Eager
    from wholestep.device.random import Generator


class TpuModule(types.ModuleType):
    """The module. Its functions have the meaning that those of `torch.cuda` have."""

    _initialized = True  # which `torch.utils.checkpoint` asks before it keeps the generator's state

    @property
    def eager_mode(self) -> str:
        """`immediate`: each operator is a program of its own, cached, that runs at once. `deferred`: operators are
        recorded, and run as one program when a value is needed."""
        return _eager().mode

    @eager_mode.setter
    def eager_mode(self, mode: str) -> None:
        _eager().set_mode(mode)

    @property
    def recording_bound(self) -> int:
        """Operators that are recorded at most, in deferred mode."""
        return _eager().bound

    @recording_bound.setter
    def recording_bound(self, bound: int) -> None:
        _eager().bound = bound

    def counters(self) -> Counters:
        """What ran, was compiled and found compiled; `reset()` counts from zero."""
        return _eager().counters

    def is_available(self) -> bool:
        """Always: where there is no TPU, the device is the CPU, through XLA."""
        return True

    def is_initialized(self) -> bool:
        """Always: nothing is to be done first."""
        return True

    def init(self) -> None:
        """Nothing is to be done."""

    def device_count(self) -> int:
        """One: the devices of a pod are one program's, over a DeviceMesh."""
        return 1

    def current_device(self) -> int:
        """0."""
        return 0

    def set_device(self, device: Any) -> None:
        """Raises:
        RuntimeError: any other than tpu:0.
        """
        index = device if isinstance(device, int) else torch.device(device).index or 0
        if index != 0:
            raise RuntimeError(f"there is no tpu:{index}: operators run on tpu:0")

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Work on this device."""
        self.set_device(device)
        yield

    def get_device_name(self, device: Any = None) -> str:
        """Such as `TPU v6 lite`, or `cpu`."""
        return _device().device_kind

    def get_device_properties(self, device: Any = None) -> types.SimpleNamespace:
        """Name, platform and memory in bytes, where it is known."""
        stats = self.memory_stats()
        return types.SimpleNamespace(
            name=self.get_device_name(), platform=_device().platform, total_memory=stats.get("bytes_limit", 0)
        )

    def synchronize(self, device: Any = None) -> None:
        """Run what is recorded and wait for all that runs."""
        _eager().flush("synchronize")
        for array in _device().client.live_arrays():
            array.block_until_ready()

    def manual_seed(self, seed: int) -> None:
        """Start the random generator again from this seed; `torch.manual_seed` does it too."""
        _generator().manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        """The same."""
        _generator().manual_seed(int(seed))

    def seed(self) -> int:
        """Start the random generator again from a seed of the system's; which."""
        seed = int(torch.randint(2**62, ()))
        _generator().manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """What it started from."""
        return _generator().seed

    def get_rng_state(self, device: Any = None) -> Tensor:
        """The generator's state, uint8[16] on the CPU."""
        return _generator().state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        """Go on from a state."""
        _generator().set_state(state)

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        """Bytes in use, at most so far, and in all, as far as the platform says; of a CPU, the arrays that live."""
        stats = _device().memory_stats()
        if stats is None:
            return {"bytes_in_use": sum(array.nbytes for array in _device().client.live_arrays())}
        return dict(stats)

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes in use."""
        return self.memory_stats()["bytes_in_use"]

    def max_memory_allocated(self, device: Any = None) -> int:
        """Bytes in use at most so far, where the platform says, else now."""
        stats = self.memory_stats()
        return stats.get("peak_bytes_in_use", stats["bytes_in_use"])

    def empty_cache(self) -> None:
        """Nothing is held back: XLA reuses what is free."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """What `torch.autocast("tpu")` computes in."""
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self) -> bool:
        """It is what TPUs multiply in."""
        return True

    def _is_in_bad_fork(self) -> bool:
        return False


def _eager() -> Eager:
    from wholestep.device.eager import EAGER  # with JAX, which nothing else here needs

    return EAGER


def _generator() -> Generator:
    from wholestep.device.random import GENERATOR

    return GENERATOR


def _device() -> jax.Device:
    import jax

    from wholestep.xla.devices import configure_devices

    configure_devices()
    return jax.devices()[0]
