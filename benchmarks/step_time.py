"""Time of a training step: Wholestep against the same step in hand-written JAX, eager PyTorch and `torch.compile`.

    python benchmarks/step_time.py --mesh fsdp=1 --mesh fsdp=8 --json step_time.json

All contenders take the same model, batch and first state, and must agree with eager PyTorch before a clock starts: loss
and every parameter after three steps, to 1e-5. They then take turns within this one process; every second round goes
backwards, so that nobody always follows the same neighbour. A ratio is the median of the rounds' own ratios: what
disturbs the machine for longer than a round cancels out. The meshes' devices are virtual ones on a CPU; PyTorch is one
process on all cores.

- *step* is wall time from the batch as NumPy arrays until loss and new state are ready. Steps are not overlapped.
- *CPU* is the processor time of the whole process meanwhile, which other programs on the machine disturb less.
- *host* is the calling thread's processor time from the batch until the call returns: placing the batch, Python,
  enqueueing. XLA computes on threads of its own, so neither the step nor its taking the core away is counted. In a
  training loop that does not wait for each step, this is hidden behind the step before.
"""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import jax
import numpy as np
from contenders import Contender, HandWrittenJax, PyTorch, Wholestep, check_comparable, packed_batch
from machine import machine
from rich.console import Console
from rich.table import Table

from wholestep.config.override import apply
from wholestep.parallel import Mesh
from wholestep.pipeline import Recipe
from wholestep.recipes.registry import find

TOLERANCE = 1e-5
AGREEMENT_STEPS = 3


@dataclass(frozen=True)
class Sample:
    """Seconds of one step, as the file's docstring defines them; `returned` is wall time until the call came back."""

    step: float
    cpu: float
    host: float
    returned: float
    loss: float


def run_step(contender: Contender, recipe: Recipe, step: int) -> Sample:
    learning_rate = recipe.optimizer.lr * recipe.schedule.factor(step, recipe.steps)
    cpu, host, start = time.process_time(), time.thread_time(), time.perf_counter()
    pending = contender.dispatch(learning_rate, step)
    host, returned = time.thread_time() - host, time.perf_counter() - start
    loss = contender.finish(pending)
    return Sample(time.perf_counter() - start, time.process_time() - cpu, host, returned, loss)


def check_agreement(
    contender: Contender, losses: Sequence[float], reference: Contender, expected: Sequence[float]
) -> None:
    """Raises ClickException unless `contender` went where `reference` went."""
    errors = {
        f"loss of step {i}": abs(a - b) / abs(b) for i, (a, b) in enumerate(zip(losses, expected, strict=True), 1)
    }
    ours = contender.parameters()
    for name, value in reference.parameters().items():
        errors[name] = float(np.linalg.norm(ours[name] - value) / np.linalg.norm(value))
    worst = max(errors, key=lambda name: errors[name])
    if not errors[worst] <= TOLERANCE:
        raise click.ClickException(f"{contender.name} on {contender.mesh} is off by {errors[worst]:.1e} in {worst}")


def compiler_figures(executable: jax.stages.Compiled) -> dict[str, float]:
    """What the compiler says of one device's program, and what its optimized HLO is made of."""
    cost, memory = executable.cost_analysis(), executable.memory_analysis()
    found = Counter(re.findall(r"= \S+(?: \S+)*? ([a-z-]+)\(", executable.as_text()))
    kinds = ("fusion", "dot", "copy", "transpose", "all-gather", "reduce-scatter", "all-reduce")
    return {
        "GFLOP": cost["flops"] / 1e9,
        "MB accessed": cost["bytes accessed"] / 1e6,
        "MB temporary": memory.temp_size_in_bytes / 1e6,
        "MB arguments": memory.argument_size_in_bytes / 1e6,
        "MB outputs": memory.output_size_in_bytes / 1e6,
        "MB aliased": memory.alias_size_in_bytes / 1e6,
        **{f"{kind} ops": found[kind] for kind in kinds},
    }


def prepare(recipe: Recipe, meshes: Sequence[Mesh]) -> tuple[list[Contender], dict[str, str]]:
    """Every contender after `AGREEMENT_STEPS` steps, agreeing; and for one that cannot run here, why."""
    batch = packed_batch(recipe)
    contenders: list[Contender] = []
    failed: dict[str, str] = {}
    for mesh in meshes:
        sharded = dataclasses.replace(recipe, mesh=mesh)
        check_comparable(sharded)
        ours = Wholestep(sharded, batch)
        start = (sharded, batch, ours.parameters(), ours.buffers())
        contenders += [ours, HandWrittenJax(*start)]
    contenders += [PyTorch(*start, compiled=False), PyTorch(*start, compiled=True)]
    reference: tuple[Contender, list[float]] | None = None
    for contender in sorted(contenders, key=lambda contender: contender.name != "eager"):
        try:
            losses = [run_step(contender, recipe, step).loss for step in range(1, AGREEMENT_STEPS + 1)]
        except RuntimeError as error:
            if contender.name != "torch.compile":
                raise
            failed[contender.name] = str(error).strip().splitlines()[0]
            continue
        reference = reference or (contender, losses)
        check_agreement(contender, losses, *reference)
    return [contender for contender in contenders if contender.name not in failed], failed


def against(contender: Contender, meshes: Sequence[Mesh]) -> str:
    """The mesh of the hand-written JAX that `contender` is compared to: its own, or the first."""
    return str(meshes[0]) if contender.mesh == "none" else contender.mesh


def measure(contenders: Sequence[Contender], recipe: Recipe, rounds: int) -> list[list[Sample]]:
    """samples[contender][round]."""
    samples: list[list[Sample]] = [[] for _ in contenders]
    order = list(range(len(contenders)))
    for number in range(rounds):
        for i in order if number % 2 == 0 else reversed(order):
            samples[i].append(run_step(contenders[i], recipe, AGREEMENT_STEPS + 1 + number))
    return samples


def summarize(
    contenders: Sequence[Contender], samples: Sequence[Sequence[Sample]], meshes: Sequence[Mesh]
) -> list[dict[str, Any]]:
    """One row a contender: medians in seconds, the rounds' ratios to hand-written JAX, the compiler's figures."""
    by_mesh = {c.mesh: rows for c, rows in zip(contenders, samples, strict=True) if c.name == "jax"}
    results = []
    for contender, own in zip(contenders, samples, strict=True):
        reference = by_mesh[against(contender, meshes)]
        steps = [sample.step for sample in own]
        row: dict[str, Any] = {
            "name": contender.name,
            "mesh": contender.mesh,
            "median": statistics.median(steps),
            "min": min(steps),
            "max": max(steps),
            "ratio": statistics.median(a.step / b.step for a, b in zip(own, reference, strict=True)),
            "ratio_quartiles": np.percentile(
                [a.step / b.step for a, b in zip(own, reference, strict=True)], [25, 75]
            ).tolist(),
            "cpu": statistics.median(sample.cpu for sample in own),
            "cpu_ratio": statistics.median(a.cpu / b.cpu for a, b in zip(own, reference, strict=True)),
            "samples": [asdict(sample) for sample in own],
        }
        if isinstance(contender, Wholestep | HandWrittenJax):
            row["host"] = statistics.median(sample.host for sample in own)
            row["host_fraction"] = statistics.median(sample.host / sample.step for sample in own)
            row["compiler"] = compiler_figures(contender.executable)
        results.append(row)
    return results


def show(results: Sequence[dict[str, Any]], failed: dict[str, str], title: str) -> None:
    console = Console(width=120)
    times = Table(
        "",
        "mesh",
        "step ms",
        "min",
        "max",
        "of JAX's",
        "quartiles",
        "CPU ms",
        "of JAX's",
        "host ms",
        "of step",
        title=title,
    )
    for row in results:
        low, high = row["ratio_quartiles"]
        host = [f"{row['host'] * 1e3:.1f}", f"{row['host_fraction']:.1%}"] if "host" in row else []
        milliseconds = [f"{row[key] * 1e3:.0f}" for key in ("median", "min", "max")]
        ratios = [f"{row['ratio']:.3f}", f"{low:.2f}-{high:.2f}"]
        times.add_row(
            row["name"],
            row["mesh"],
            *milliseconds,
            *ratios,
            f"{row['cpu'] * 1e3:.0f}",
            f"{row['cpu_ratio']:.3f}",
            *host,
        )
    for contender in failed:
        times.add_row(contender, "none", "cannot run")
    times.caption = "\n".join(f"{contender}: {reason}" for contender, reason in failed.items())
    console.print(times)
    compiled = [row for row in results if "compiler" in row]
    figures = Table("a device's program", *(f"{row['name']} {row['mesh']}" for row in compiled))
    for key in compiled[0]["compiler"]:
        figures.add_row(key, *(f"{row['compiler'][key]:,.0f}" for row in compiled))
    console.print(figures)


@click.command()
@click.option("--recipe", "name", default="llama3_debug", show_default=True)
@click.option("--set", "assignments", multiple=True, metavar="PATH=VALUE", help="Change the recipe.")
@click.option("--mesh", "meshes", multiple=True, default=("fsdp=1", "fsdp=8"), show_default=True)
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(min=1), help="Timed steps of each.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write everything measured there.")
def main(name: str, assignments: Sequence[str], meshes: Sequence[str], rounds: int, path: Path | None) -> None:
    """Time a training step against hand-written JAX, eager PyTorch and torch.compile, side by side."""
    recipe = apply(find(name).function(), assignments)
    parsed = [Mesh.parse(mesh) for mesh in meshes]
    contenders, failed = prepare(recipe, parsed)
    results = summarize(contenders, measure(contenders, recipe, rounds), parsed)
    size = f"{recipe.model.num_parameters() / 1e6:.1f}M parameters"
    show(results, failed, f"{name}: {size}, {recipe.batch_size} x {recipe.sequence_length} tokens")
    if path is not None:
        report = {"recipe": name, "set": assignments, "machine": machine(), "results": results, "failed": failed}
        path.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
