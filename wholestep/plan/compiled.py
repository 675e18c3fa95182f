"""A step compiled for a topology, as texts on disk: found there again by the content of what was compiled."""

from __future__ import annotations

import gzip
import json
import platform
import shutil
import tempfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

import wholestep
from wholestep.data.cache import cached_directory, digest
from wholestep.errors import DeviceMemoryError
from wholestep.graph.costs import flops, step_flops, step_nodes
from wholestep.graph.step import StepGraph
from wholestep.pipeline import train_program
from wholestep.plan.assignment import Assignment, parse_assignment
from wholestep.plan.costs import Kernel
from wholestep.plan.hlo import Module, parse
from wholestep.plan.job import Job
from wholestep.xla.memory_use import MemoryUse, available_memory, compile_for_tpu
from wholestep.xla.scope import origin, scope

_FORMAT = 2
"""Of what is kept in the cache; another one's is not found."""
_DUMPED = {"buffers": "buffer-assignment", "ranges": "live-range"}


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a step.

    Attributes:
        directory: in the cache.
    """

    directory: Path

    @cached_property
    def module(self) -> Module:
        """The scheduled program."""
        return parse(self._text("hlo"))

    @cached_property
    def assignment(self) -> Assignment:
        """Where what lies in memory."""
        return parse_assignment(self._text("buffers"), self._text("ranges"))

    @cached_property
    def facts(self) -> dict[str, Any]:
        """`memory_analysis` (`MemoryUse` by field; None for a program that does not fit), `available` bytes,
        `compile_seconds`, `versions`, `options`, `kernels` ([module, operator, FLOPs of a step] of what may be Pallas
        kernels, whose arithmetic the program's text does not show), `flops` (of the step graph), `notes` of the
        capture."""
        facts: dict[str, Any] = json.loads((self.directory / "facts.json").read_text())
        return facts

    def is_whole(self) -> bool:
        """Whether all of it can be read, as far as its form goes; disks fill and files are touched."""
        try:
            return all(self._text(name) for name in ("hlo", *_DUMPED)) and bool(self.facts)
        except (OSError, EOFError, zlib.error, ValueError):
            return False

    def _text(self, name: str) -> str:
        return gzip.decompress((self.directory / f"{name}.gz").read_bytes()).decode()


def compile_job(job: Job) -> Compiled:
    """Capture, lower and compile, or find it in the cache. What is compiled is exactly what training runs.

    A program is found by its text without the lines of code that it came from: those of a cached one may have moved.

    Raises:
        ConfigError: a setting is wrong.
        LoweringError: an operator cannot be lowered.
    """
    recipe = job.build()
    mesh = job.mesh(recipe)
    program = train_program(recipe, mesh)
    lowered = program.lower()
    versions = _versions()
    key = digest(
        lowered.as_text(), job.topology, str(job.slices), json.dumps([_FORMAT, dict(program.options), versions])
    )

    def fill(directory: Path) -> None:
        facts = {
            **_compile(lowered, program.options, directory),
            "available": available_memory(mesh, program.options),
            "versions": versions,
            "options": dict(program.options),
            "kernels": [(*kernel, count) for kernel, count in kernel_flops(program.step).items()],
            "flops": step_flops(program.step),
            "notes": list(program.step.notes),
        }
        (directory / "facts.json").write_text(json.dumps(facts))

    compiled = Compiled(cached_directory("plans", key, fill))
    if compiled.is_whole():
        return compiled
    shutil.rmtree(compiled.directory)
    return Compiled(cached_directory("plans", key, fill))


def _compile(lowered: jax.stages.Lowered, options: Mapping[str, str], directory: Path) -> dict[str, Any]:
    """Write the program and its buffer assignment as texts; of one that does not fit, as far as the compiler came."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as dumped:
        dump: dict[str, str | bool] = {"xla_dump_to": dumped, "xla_dump_hlo_as_text": True}
        memory, text = None, None
        try:
            compiled = compile_for_tpu(lowered, options={**options, **dump})
            memory, text = vars(MemoryUse.of(compiled)), compiled.as_text()
        except DeviceMemoryError:
            text = _dumped(Path(dumped), "")
            if text is None or _dumped(Path(dumped), "live-range") is None:
                raise  # too large to be placed at all
        seconds = time.perf_counter() - started
        texts = {"hlo": text, **{name: _dumped(Path(dumped), what) for name, what in _DUMPED.items()}}
    for name, each in texts.items():
        assert each is not None, f"the compiler dumped no {name}"
        (directory / f"{name}.gz").write_bytes(gzip.compress(each.encode(), 3))
    return {"memory_analysis": memory, "compile_seconds": seconds}


def _dumped(directory: Path, what: str) -> str | None:
    suffix = f"after_optimizations-{what}.txt" if what else "after_optimizations.txt"
    found = sorted(directory.glob(f"module_*.{suffix}"))
    return found[-1].read_text() if found else None


def kernel_flops(step: StepGraph) -> dict[Kernel, int]:
    """FLOPs of a step by module and operator, of operators of our own: what may be a Pallas kernel."""
    total: dict[Kernel, int] = {}
    for node, times in step_nodes(step.module):
        if node.op == "call_function":
            came_from = origin(scope(node))
            if came_from.operator.startswith("wholestep."):
                kernel = came_from.module, came_from.operator
                total[kernel] = total.get(kernel, 0) + times * flops(node)
    return {kernel: count for kernel, count in total.items() if count}


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("jax", "jaxlib", "libtpu", "torch")}
    return {"wholestep": wholestep.__version__, **packages, "python": platform.python_version()}
