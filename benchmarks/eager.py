"""Training loops in plain PyTorch on the tpu device, by mode, beside PyTorch on the CPU; and what an operator costs.

    python benchmarks/eager.py --json eager.json            # all examples
    python benchmarks/eager.py --example small_gpt

Each example runs its own loop, with its small sizes, which reads its losses at the end. The first half of the steps, in
which programs are compiled, does not count; a step's time is that of the second half, until its last loss is there, by
their number. Modes take turns, `--rounds` times; a step's time is the median, as are the ratios of a round.

What an operator costs is the time of one call of `x + y`, `x @ y`, `x * 2.5` and `sin(x)` of [16, 16], results not
waited for: in immediate mode, and of JAX's own functions, in turns; the median of rounds, as are the ratios.
"""

from __future__ import annotations

import importlib
import itertools
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


def step_time(name: str, device: str, mode: str, steps: int) -> tuple[float, float]:
    """Seconds of a step, and how many of the device's operators it calls."""
    sys.path.insert(0, str(EXAMPLES))
    modes, example = importlib.import_module("modes"), importlib.import_module(name)
    plain = modes.prepared_step
    marks: list[tuple[float, int]] = []

    def timed(step: Callable[..., Any], mode: str, device: torch.device) -> Callable[..., Any]:
        prepared, calls = plain(step, mode, device), itertools.count()
        result: Any = ()

        def mark() -> None:
            """Once the last step is done. (To synchronize would cut a recording where the loop does not.)"""
            for loss in result if isinstance(result, tuple) else (result,):
                loss.cpu()
            marks.append((time.perf_counter(), torch.tpu.counters().operators))

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal result
            call = next(calls)
            if call == steps // 2:
                mark()
            result = prepared(*args, **kwargs)
            if call == steps - 1:
                mark()
            return result

        return run

    example.prepared_step = timed
    try:
        example.main(device=device, mode=mode, steps=steps, exact=True)
    finally:
        example.prepared_step = plain
        torch.tpu.eager_mode = "immediate"
        torch._dynamo.reset()
    (start, before), (end, after) = marks
    counted = steps - steps // 2
    return (end - start) / counted, (after - before) / counted


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
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path))
def main(names: tuple[str, ...], steps: int, rounds: int, path: Path | None) -> None:
    console = Console()
    costs = operator_costs()
    table = Table("operator, [16, 16]", "here, µs", "JAX, µs", "ratio")
    for name, cost in costs.items():
        table.add_row(name, *(f"{cost[key]:.2f}" for key in ("ours_us", "jax_us", "ratio")))
    console.print(table)
    loops: dict[str, dict[str, dict[str, float]]] = {}
    for name in names or NAMES:
        taken: dict[str, list[tuple[float, float]]] = {}
        for turn in range(rounds):
            for device, mode in WAYS:
                console.print(f"{name} on {device}, {mode}, {turn + 1} of {rounds} ...")
                taken.setdefault(f"{device} {mode}", []).append(step_time(name, device, mode, steps))
        table = Table(name, "step, ms", "operators", "operators/s", "immediate mode's time / this")
        loops[name] = {}
        for way, results in taken.items():
            seconds, operators = statistics.median(each for each, _ in results), results[-1][1]
            ratios = [slow / own for (slow, _), (own, _) in zip(taken["tpu immediate"], results, strict=True)]
            loops[name][way] = {
                "step_ms": 1e3 * seconds,
                "operators": operators,
                "operators_per_second": operators / seconds,
                "speedup_over_immediate": statistics.median(ratios),
            }
            table.add_row(way, *(f"{value:,.2f}" for value in loops[name][way].values()))
        console.print(table)
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), "operators": costs, "loops": loops}, indent=1) + "\n")


if __name__ == "__main__":
    main()
