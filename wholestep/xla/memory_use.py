"""What a program needs of a device's memory, as the compiler counts it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp

from wholestep.errors import DeviceMemoryError, HostMemoryError
from wholestep.xla.compile_cache import without_compile_cache
from wholestep.xla.flags import compile_with

# What libtpu says: the first where it sees early, by a bound, that the program (with what goes in and comes out) cannot
# fit; the second where memory was assigned and did not suffice; the third of a single array.
_OUT_OF_MEMORY = (
    re.compile(r"HLO temporaries \((?P<needed>[\d.]+\w?)\) exceeds available HBM \((?P<available>[\d.]+\w?)\)"),
    re.compile(r"Used (?P<needed>[\d.]+\w?) of (?P<available>[\d.]+\w?) hbm"),
    re.compile(r"Allocation \(size=(?P<needed>\d+)\) would exceed memory \(size=(?P<available>\d+)\)"),
)
_OUT_OF_HOST_MEMORY = re.compile(
    r"Allocation \(size=(?P<needed>\d+)\) would exceed memory \(size=(?P<available>\d+)\) :: \S+ = \S+\.host "
)
_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes of one device, and of the host's memory for that device.

    Attributes:
        arguments: what goes in: state and batch.
        outputs: what comes out.
        aliased: of the outputs, those that take the place of an argument.
        temporaries: what is alive in between, at its most. What fits the TPU's fast memory (VMEM) lies there and is
            not counted, so that a small program may have none.
        host_temporaries: the same in host memory.
        code: the program itself.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    host_temporaries: int
    code: int

    @property
    def total(self) -> int:
        """Bytes that the device needs at once."""
        return self.arguments + self.temporaries + self.outputs - self.aliased + self.code

    @classmethod
    def of(cls, compiled: jax.stages.Compiled) -> MemoryUse:
        """The figures of a compiled program."""
        stats = compiled.memory_analysis()
        return cls(
            arguments=stats.argument_size_in_bytes,
            outputs=stats.output_size_in_bytes,
            aliased=stats.alias_size_in_bytes,
            temporaries=stats.temp_size_in_bytes,
            host_temporaries=stats.host_temp_size_in_bytes,
            code=stats.generated_code_size_in_bytes,
        )


def compile_for_tpu(
    lowered: jax.stages.Lowered, *, options: Mapping[str, str | bool] = MappingProxyType({}), past_memory: bool = False
) -> jax.stages.Compiled:
    """Compile a program that was lowered for a TPU.

    Args:
        lowered: the program.
        options: flags, as of `Program.options`.
        past_memory: go on where the program does not fit, to see by how much (`MemoryUse.of`). Not everything can be
            seen so: a single array that is larger than the memory stops the compiler all the same.

    Raises:
        ConfigError: the compiler does not know a flag, or does not take its value.
        DeviceMemoryError: the program does not fit.
        HostMemoryError: what it offloads does not fit the host.
    """
    if past_memory:
        options = {**options, "xla_tpu_no_crash_on_oom": "true"}
    try:
        with without_compile_cache():
            return compile_with(lowered, options)
    except jax.errors.JaxRuntimeError as error:
        if match := _OUT_OF_HOST_MEMORY.search(str(error)):
            raise HostMemoryError(int(match["needed"]), int(match["available"])) from error
        for pattern in _OUT_OF_MEMORY:
            if match := pattern.search(str(error)):
                raise DeviceMemoryError(_bytes(match["needed"]), _bytes(match["available"])) from error
        raise


def _bytes(text: str) -> int:
    """`31.25G` -> bytes."""
    unit = text.lstrip("0123456789.")
    return round(float(text.removesuffix(unit)) * _UNITS[unit])


def available_memory(mesh: jax.sharding.Mesh, options: Mapping[str, str] = MappingProxyType({})) -> int:
    """Bytes of a device's memory that programs can have, as the compiler says when asked for too much with these
    flags."""
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    too_large = jax.ShapeDtypeStruct((2**29, 1024), jnp.float32, sharding=everywhere)  # 2 TiB
    try:
        compile_for_tpu(jax.jit(lambda x: x + jnp.roll(x, 1, axis=0)).lower(too_large), options=options)
    except DeviceMemoryError as error:
        return error.available
    raise AssertionError("2 TiB fit a device")
