"""Compile one training step in a process of its own and say what came of it, for `depth.py`.

    python benchmarks/compiled_step.py CASE

where CASE is a `Case` as JSON. The last line of the output is a `Figures` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import jax
import psutil
import torch
from torch import fx

from wholestep.config.override import apply
from wholestep.errors import DeviceMemoryError, WholestepError
from wholestep.graph.scan import loop
from wholestep.pipeline import Recipe, train_program
from wholestep.recipes.registry import find
from wholestep.xla.compile_cache import count_compiles
from wholestep.xla.devices import device_mesh
from wholestep.xla.memory_use import MemoryUse, compile_for_tpu
from wholestep.xla.topologies import topology_mesh

aten = torch.ops.aten


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
        capture: from the recipe to a program, in a process where nothing is warm.
        lower: to StableHLO.
        compile: by XLA; None where it was not asked for.
        capture_cpu: processor time of the capture: what other programs on the machine disturb less.
        compile_cpu: processor time of the compilation, over all threads.
        stablehlo: bytes of the lowered program's text.
        instructions: of the compiled program, all computations together.
        code: the executable's machine code.
        executables: programs that XLA was asked for, those for constants included.
        memory: `MemoryUse`, by field, and its total.
        refused: bytes that the compiler says it needs at least, where it does not go on without them.
        matmul_flops: of the step graph's matrix products, times the trips of their loops.
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
    peak_rss: int


def matmul_flops(module: fx.GraphModule) -> int:
    """Two for each multiplication of the graph's matrix products on one device."""
    total = 0
    for node in module.graph.nodes:
        if node.target is loop:
            body, _, xs, *_ = node.args
            total += xs[0].meta["val"].shape[0] * matmul_flops(getattr(module, body.target))
        elif node.target in (aten.mm.default, aten.bmm.default, aten.addmm.default):
            inner = node.args[-1].meta["val"].shape[-2]
            total += 2 * math.prod(node.meta["val"].shape) * inner
    return total


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
    with count_compiles() as counts:
        started, started_cpu = time.perf_counter(), time.process_time()
        program = train_program(recipe, mesh)
        captured, captured_cpu = time.perf_counter(), time.process_time()
        lowered = program.lower()
        done = time.perf_counter()
        text = lowered.as_text()
        compile_started, compile_started_cpu = time.perf_counter(), time.process_time()
        compiled, refused = None, None
        if case.compiled and not case.topology:
            compiled = lowered.compile()
        elif case.compiled:
            compiled, refused = compiled_or_refused(lowered)
        compiled_after, cpu = time.perf_counter() - compile_started, time.process_time() - compile_started_cpu
    use = MemoryUse.of(compiled) if compiled else None
    return Figures(
        capture=captured - started,
        lower=done - captured,
        compile=compiled_after if case.compiled else None,
        capture_cpu=captured_cpu - started_cpu,
        compile_cpu=cpu if case.compiled else None,
        stablehlo=len(text),
        instructions=len(re.findall(r"^ +(?:ROOT )?%?\S+ = ", compiled.as_text(), re.MULTILINE)) if compiled else None,
        code=compiled.memory_analysis().generated_code_size_in_bytes if compiled else None,
        executables=counts.programs,
        memory={**asdict(use), "total": use.total} if use else None,
        refused=refused,
        matmul_flops=matmul_flops(program.step.module),
        peak_rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


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
        return {"failed": lines[-1]}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(figures(Case(**json.loads(sys.argv[1]))))))
    except WholestepError as error:
        sys.exit(str(error))
