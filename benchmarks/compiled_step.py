"""Compile one training step in a process of its own and say what came of it, for `depth.py`.

    python benchmarks/compiled_step.py CASE

where CASE is a `Case` as JSON. The last line of the output is a `Figures` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import psutil

from wholestep.config.override import apply
from wholestep.errors import DeviceMemoryError, WholestepError
from wholestep.graph.costs import step_flops
from wholestep.pipeline import Recipe, train_program
from wholestep.plan.compiled import kernel_flops
from wholestep.plan.costs import Cost, costs, walk
from wholestep.plan.hlo import parse
from wholestep.recipes.registry import find
from wholestep.xla.chips import chip_of
from wholestep.xla.devices import device_mesh
from wholestep.xla.memory_use import MemoryUse, compile_for_tpu
from wholestep.xla.program import Program
from wholestep.xla.split_program import SplitProgram
from wholestep.xla.topologies import topology_mesh


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training step to compile.

    Attributes:
        recipe: name of a registered recipe.
        assignments: `PATH=VALUE`, applied to it.
        layers: how often its first layer is repeated; None: its own layers.
        topology: of the TPU; None: this machine's CPU.
        compiled: whether to compile, or only to capture and lower.
    """

    recipe: str
    assignments: tuple[str, ...]
    layers: int | None = None
    topology: str | None = None
    compiled: bool = True

    def build(self) -> Recipe:
        recipe = apply(find(self.recipe).function(), self.assignments)
        if self.layers is None:
            return recipe
        model = dataclasses.replace(recipe.model, layers=recipe.model.layers[:1] * self.layers)
        return dataclasses.replace(recipe, model=model)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What compiling it took and gave. Seconds, bytes; of one device where it is of a program.

    Attributes:
        capture: from the recipe to a step graph, in a process where nothing is warm; of a split step to its programs.
        lower: to StableHLO; of a split step it is part of the capture.
        compile: by XLA; None where it was not asked for.
        capture_cpu: processor time of the capture: what other programs on the machine disturb less.
        compile_cpu: processor time of the compilation, over all threads.
        stablehlo: bytes of the lowered program's text.
        instructions: of the compiled programs, all computations together.
        code: the executables' machine code.
        executables: distinct programs of the step.
        memory: `MemoryUse`, by field, and its total; of a split step that of the program that needs most.
        refused: bytes that the compiler says it needs at least, where it does not go on without them.
        matmul_flops: `step_flops`.
        kernel_flops: of these, those of Pallas kernels, for which the compiler has no cycles.
        cycles: the TPU compiler's estimate by module, kernels and collectives not among them.
        peak_rss: the most memory this process had.
    """

    capture: float
    lower: float
    compile: float | None
    capture_cpu: float
    compile_cpu: float | None
    stablehlo: int
    instructions: int | None
    code: int | None
    executables: int
    memory: dict[str, int] | None
    refused: int | None
    matmul_flops: int
    kernel_flops: int
    cycles: dict[str, int] | None
    peak_rss: int


def compiled_or_refused(lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled | None, int | None]:
    """The program for a TPU, whether it fits or not; or, where an array alone is too large, the bytes it asks for."""
    try:
        return compile_for_tpu(lowered, past_memory=True), None
    except DeviceMemoryError as error:
        needed = error.needed
    try:
        return compile_for_tpu(lowered), None
    except DeviceMemoryError as error:  # without `past_memory` the bound is of the whole program
        return None, max(needed, error.needed)


def figures(case: Case) -> Figures:
    recipe = case.build()
    mesh = topology_mesh(case.topology, recipe.mesh) if case.topology else device_mesh(recipe.mesh)
    started, started_cpu = time.perf_counter(), time.process_time()
    program = train_program(recipe, mesh)
    split_lowered = list(program.lowered.values()) if isinstance(program, SplitProgram) else None
    captured, captured_cpu = time.perf_counter(), time.process_time()
    lowered = split_lowered or [program.lower()]
    done = time.perf_counter()
    texts = [each.as_text() for each in lowered]
    compile_started, compile_started_cpu = time.perf_counter(), time.process_time()
    compiled: list[jax.stages.Compiled] = []
    refused = []
    for each in lowered if case.compiled else ():
        executable, needed = compiled_or_refused(each) if case.topology else (each.compile(), None)
        compiled += [executable] if executable else []
        refused += [needed] if needed else []
    compiled_after, cpu = time.perf_counter() - compile_started, time.process_time() - compile_started_cpu
    uses = [MemoryUse.of(each) for each in compiled]
    most = max(uses, key=lambda use: use.total, default=None)
    spent = [each for one in compiled for each in spending(one, program)] if case.topology else []
    instructions = (len(re.findall(r"^ +(?:ROOT )?%?\S+ = ", each.as_text(), re.MULTILINE)) for each in compiled)
    return Figures(
        capture=captured - started,
        lower=done - captured,
        compile=compiled_after if case.compiled else None,
        capture_cpu=captured_cpu - started_cpu,
        compile_cpu=cpu if case.compiled else None,
        stablehlo=sum(map(len, texts)),
        instructions=sum(instructions) if compiled else None,
        code=sum(each.memory_analysis().generated_code_size_in_bytes for each in compiled) if compiled else None,
        executables=len(lowered),
        memory={**asdict(most), "total": most.total} if most and not refused else None,
        refused=max(refused, default=None),
        matmul_flops=step_flops(program.step),
        kernel_flops=sum(cost.flops * times for cost, times in spent if cost.work == "kernel"),
        cycles=cycles_by_module(spent) if case.topology else None,
        peak_rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def spending(compiled: jax.stages.Compiled, program: Program) -> list[tuple[Cost, int]]:
    """What a program for a TPU spends, and how often."""
    chip = chip_of(program.mesh)
    assert chip is not None
    return list(walk(costs(parse(compiled.as_text()), program.mesh, chip, kernel_flops(program.step))))


def cycles_by_module(spent: Sequence[tuple[Cost, int]]) -> dict[str, int]:
    """The compiler's estimates, loops with all their trips; `""` for what belongs to no module."""
    cycles: Counter[str] = Counter()
    for cost, times in spent:
        cycles[cost.origin.module] += times * (cost.instruction.estimated_cycles or 0)
    return dict(cycles)


def in_own_process(case: Case, memory_limit: int, timeout: float) -> dict[str, Any]:
    """`Figures` of the case by field, from a fresh process; or why there are none, as `failed`."""
    command = [sys.executable, __file__, json.dumps(asdict(case))]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watched, start = psutil.Process(child.pid), time.monotonic()
    while True:
        try:
            output, _ = child.communicate(timeout=1)
            break
        except subprocess.TimeoutExpired:
            seconds, memory = time.monotonic() - start, watched.memory_info().rss
        if memory > memory_limit or seconds > timeout:
            child.kill()
            child.communicate()
            return {"failed": f"stopped after {seconds:.0f} s with {memory / 2**30:.1f} GiB"}
    lines = output.strip().splitlines() or ["no output"]
    if child.returncode:
        crash = next((line for line in lines if "Check failed" in line), None)  # libtpu's last words come after it
        return {"failed": crash or lines[-1]}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(figures(Case(**json.loads(sys.argv[1]))))))
    except WholestepError as error:
        sys.exit(str(error))
