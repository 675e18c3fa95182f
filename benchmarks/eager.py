"""Training loops in plain PyTorch on the tpu device, by mode, beside PyTorch on the CPU; and what an operator costs.

    python benchmarks/eager.py --json eager.json            # all examples
    python benchmarks/eager.py --example small_gpt

Each example runs its own loop, with its small sizes; a step's time is from its call until its loss has been read. The
first half of the steps, in which programs are compiled, does not count. Of the others, the median. Modes run one after
the other: unlike interleaved ones, their ratios wobble with the machine.

What an operator costs is the time of one call of `x + y`, `x @ y`, `x * 2.5` and `sin(x)` of [16, 16], results not
waited for: in immediate mode, and of JAX's own functions, in turns; the median of rounds, as are the ratios.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jax.numpy as jnp
import torch
from machine import machine
from rich.console import Console
from rich.table import Table

import wholestep

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = ("small_gpt", "image_classifier", "unet", "lstm", "gan")
WAYS = (("cpu", "immediate"), *(("tpu", mode) for mode in ("immediate", "deferred", "compiled", "captured")))


def step_times(name: str, device: str, mode: str, steps: int) -> dict[str, float]:
    """Seconds of a step, and of the device's operators a second."""
    sys.path.insert(0, str(EXAMPLES))
    modes, example = importlib.import_module("modes"), importlib.import_module(name)
    plain = modes.prepared_step
    seconds: list[float] = []
    operators: list[int] = []

    def timed(step: Callable[..., Any], mode: str, device: torch.device) -> Callable[..., Any]:
        prepared = plain(step, mode, device)

        def run(*args: Any, **kwargs: Any) -> Any:
            before, start = torch.tpu.counters().operators, time.perf_counter()
            result = prepared(*args, **kwargs)
            for loss in result if isinstance(result, tuple) else (result,):
                loss.detach().cpu()
            seconds.append(time.perf_counter() - start)
            operators.append(torch.tpu.counters().operators - before)
            return result

        return run

    example.prepared_step = timed
    try:
        example.main(device=device, mode=mode, steps=steps, exact=True)
    finally:
        example.prepared_step = plain
        torch.tpu.eager_mode = "immediate"
        torch._dynamo.reset()
    step = statistics.median(seconds[steps // 2 :])
    return {"step_ms": 1e3 * step, "operators": operators[-1], "operators_per_second": operators[-1] / step}


def operator_costs(rounds: int = 41, calls: int = 200) -> dict[str, dict[str, float]]:
    """Microseconds of a call here and in JAX, and the ratio of the two."""
    x, y = (torch.rand(16, 16).to("tpu") for _ in range(2))
    a, b = wholestep.to_jax(x), wholestep.to_jax(y)
    cases: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "x + y": (lambda: x + y, lambda: a + b),
        "x @ y": (lambda: x @ y, lambda: a @ b),
        "x * 2.5": (lambda: x * 2.5, lambda: a * 2.5),
        "sin(x)": (lambda: torch.sin(x), lambda: jnp.sin(a)),
    }
    costs = {}
    for name, pair in cases.items():
        taken: list[tuple[float, float]] = []
        for turn in range(rounds):
            times = {}
            for i in (0, 1) if turn % 2 else (1, 0):
                start = time.perf_counter()
                for _ in range(calls):
                    result = pair[i]()
                times[i] = (time.perf_counter() - start) / calls * 1e6
                del result
            taken.append((times[0], times[1]))
        costs[name] = {
            "ours_us": statistics.median(ours for ours, _ in taken),
            "jax_us": statistics.median(theirs for _, theirs in taken),
            "ratio": statistics.median(ours / theirs for ours, theirs in taken),
        }
    return costs


@click.command()
@click.option("--example", "names", multiple=True, type=click.Choice(NAMES), help="Only these.")
@click.option("--steps", default=24, show_default=True)
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path))
def main(names: tuple[str, ...], steps: int, path: Path | None) -> None:
    console = Console()
    costs = operator_costs()
    table = Table("operator, [16, 16]", "here, µs", "JAX, µs", "ratio")
    for name, cost in costs.items():
        table.add_row(name, *(f"{cost[key]:.2f}" for key in ("ours_us", "jax_us", "ratio")))
    console.print(table)
    loops: dict[str, dict[str, dict[str, float]]] = {}
    for name in names or NAMES:
        table = Table(name, "step, ms", "operators", "operators/s")
        loops[name] = {}
        for device, mode in WAYS:
            console.print(f"{name} on {device}, {mode} ...")
            way = loops[name][f"{device} {mode}"] = step_times(name, device, mode, steps)
            table.add_row(
                f"{device} {mode}",
                f"{way['step_ms']:.2f}",
                f"{way['operators']:.0f}",
                f"{way['operators_per_second']:,.0f}",
            )
        console.print(table)
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), "operators": costs, "loops": loops}, indent=1) + "\n")


if __name__ == "__main__":
    main()
