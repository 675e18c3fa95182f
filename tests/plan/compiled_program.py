"""Small programs, compiled for a TPU that is not here, with what the compiler says of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from wholestep.plan.assignment import Assignment, parse_assignment
from wholestep.plan.hlo import Module, parse
from wholestep.xla.compile_cache import without_compile_cache

Spec = PartitionSpec


@dataclass(frozen=True)
class Program:
    """A compiled program, and figures of it that we do not compute ourselves.

    Attributes:
        module: as we read it.
        assignment: as we read it.
        analysis: `jax.stages.Compiled.memory_analysis()`.
        total: bytes of the device's memory, as the compiler reports them where it dumps its buffers.
    """

    module: Module
    assignment: Assignment
    analysis: Any
    total: int


def lowered(
    function: Callable[..., Any], mesh: jax.sharding.Mesh, out: Any, *inputs: tuple[tuple[int, ...], PartitionSpec]
) -> jax.stages.Lowered:
    """`function` on every device, of bf16 arrays, each with its whole shape and how it is split."""
    mapped = jax.shard_map(function, mesh=mesh, in_specs=tuple(s for _, s in inputs), out_specs=out, check_vma=False)
    return jax.jit(mapped).lower(
        *(jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec)) for shape, spec in inputs)
    )


def compiled(program: jax.stages.Lowered, options: Mapping[str, str] = MappingProxyType({})) -> Program:
    with tempfile.TemporaryDirectory() as dumped, without_compile_cache():
        dump: dict[str, str | bool] = {"xla_dump_to": dumped, "xla_dump_hlo_as_text": True}
        made = program.compile(compiler_options={**options, **dump})
        buffers, ranges, usage = (
            next(Path(dumped).glob(f"*after_optimizations-{what}.txt")).read_text()
            for what in ("buffer-assignment", "live-range", "memory-usage-report")
        )
    total = int(usage.partition("Total bytes: ")[2].split()[0])
    return Program(parse(made.as_text()), parse_assignment(buffers, ranges), made.memory_analysis(), total)
