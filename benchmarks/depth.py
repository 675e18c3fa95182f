"""Does the program grow with the number of layers, and what does it need of a device? By compiling, without running.

    python benchmarks/depth.py flatness policies large

Every row comes from a fresh process, without a compile cache, and takes the place of the same row of an earlier run in
results/depth.json; the tables show all that is there. Seconds in parentheses are processor time. TPU programs are
compiled by the real TPU compiler for a topology that is not here; nothing is said about how fast they run.

- `flatness`: one small Llama at several depths. *capture* is everything from the recipe to the step graph, the median
  of three processes. Unrolled layers are compiled for TPU up to 32 only: the time is linear.
- `policies`: Llama 3.1 8B on eight v6e chips, one row of 8,192 tokens each: what each policy for the backward pass
  (`layers.keep`, a budget too) keeps on the device and on the host, and how many matrix FLOPs it repeats, against
  `save_all`.
- `large`: Llama 3.1 405B on 128 TPU7x chips (256 devices).

Attention is the plain one, whose scores lie in memory whole: docs/kernels.md has what kernels change. A program that
does not fit is compiled all the same, to see by how much.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from compiled_step import Case, in_own_process
from machine import machine
from rich.console import Console
from rich.table import Table

from wholestep.graph.policies import POLICIES
from wholestep.xla.topologies import topology_chip

RESULTS = Path(__file__).parent / "results" / "depth.json"
MEMORY_LIMIT = 20 * 2**30
TIMEOUT = 3600.0
PLAIN = "model.layers.*.attention.inner=dot_product"
SMALL_TPU, POLICIES_TPU, LARGE_TPU = "v6e:2x2", "v6e:2x4", "tpu7x:4x4x8"
UNROLLED_TPU_LIMIT = 32
FLATNESS_TARGET = 1.2

Row = dict[str, Any]
LABELS = ("execution", "layers", "keep", "topology")


def flatness(layers: Sequence[int], executions: Sequence[str]) -> Iterator[Row]:
    """One row for each execution, depth and compiler."""
    for execution, depth in itertools.product(executions, layers):
        assignments = (
            "mesh.fsdp=4",
            "batch_size=4",
            "precision.gather=bfloat16",
            "layers.gathered=again",
            f"layers.execution={execution}",
        )
        case = Case(recipe="llama3_debug", assignments=assignments, layers=depth)
        tpu = Case(
            recipe="llama3_debug",
            assignments=assignments,
            layers=depth,
            topology=SMALL_TPU,
            compiled=execution != "unrolled" or depth <= UNROLLED_TPU_LIMIT,
        )
        own = [measured(each, execution=execution, layers=depth) for each in (case, tpu)]
        again = measured(dataclasses.replace(case, compiled=False), execution=execution, layers=depth)
        for row in own:
            for key in ("capture", "capture_cpu"):
                row[key] = statistics.median(each[key] for each in (*own, again) if key in each)
        yield from own


def policies(keeps: Sequence[str]) -> Iterator[Row]:
    """One row for each policy."""
    for keep in keeps:
        assignments = (PLAIN, "layers.execution=loop", f"layers.keep={keep}")
        yield measured(Case(recipe="llama3_8b", assignments=assignments, topology=POLICIES_TPU), keep=keep)


def large() -> Iterator[Row]:
    assignments = (PLAIN, "layers.execution=loop", "layers.keep=recompute_all")
    yield measured(Case(recipe="llama3_405b", assignments=assignments, topology=LARGE_TPU), keep="recompute_all")


def measured(case: Case, **labels: Any) -> Row:
    print("compiling" if case.compiled else "capturing", labels, "for", case.topology or "CPU", flush=True)
    return {**labels, "topology": case.topology, **in_own_process(case, MEMORY_LIMIT, TIMEOUT)}


def stored(part: str) -> list[Row]:
    """The rows of a part in the results file."""
    return json.loads(RESULTS.read_text()).get(part, {}).get("rows", []) if RESULTS.exists() else []


def store(part: str, row: Row) -> None:
    """Put a row into the results file, in place of the one of the same labels."""
    report = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows = [old for old in stored(part) if any(old.get(label) != row.get(label) for label in LABELS)]
    report[part] = {"machine": machine(), "rows": [*rows, row]}
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


def show_flatness(rows: Sequence[Row], console: Console) -> None:
    columns = ("capture s", "lower s", "compile s", "StableHLO KB", "HLO instr.", "code MB", "temp MB", "executables")
    table = Table("execution", "layers", "for", *columns, title="one small Llama, mesh fsdp=4")
    for row in sorted(rows, key=lambda row: (row["execution"], row["topology"] or "", row["layers"])):
        label = (row["execution"], str(row["layers"]), row["topology"] or "CPU")
        table.add_row(*label, *(["failed: " + row["failed"]] if "failed" in row else _flatness_cells(row)))
    console.print(table)
    for line in growth(rows):
        console.print(line)


def _flatness_cells(row: Row) -> list[str]:
    start = [f"{row['capture']:.2f} ({row['capture_cpu']:.2f})", f"{row['lower']:.2f}"]
    if row["compile"] is None:
        return [*start, "not tried", f"{row['stablehlo'] / 1e3:,.0f}"]
    sizes = [f"{row['stablehlo'] / 1e3:,.0f}", f"{row['instructions']:,}", f"{row['code'] / 1e6:.1f}"]
    return [
        *start,
        f"{row['compile']:.2f}",
        *sizes,
        f"{row['memory']['temporaries'] / 1e6:.1f}",
        str(row["executables"]),
    ]


def growth(rows: Sequence[Row]) -> list[str]:
    """For each execution and compiler that has both, how much the deepest program is above that of 8 layers."""
    lines = []
    for execution, topology in dict.fromkeys((row["execution"], row["topology"]) for row in rows):
        own = {
            row["layers"]: row
            for row in rows
            if (row["execution"], row["topology"]) == (execution, topology) and row.get("compile") is not None
        }
        deepest = max(own, default=8)
        if 8 not in own or deepest == 8:
            continue
        ratios = {
            key.replace("_", " "): own[deepest][key] / own[8][key]
            for key in ("capture_cpu", "compile_cpu", "stablehlo", "instructions", "code")
            if own[8][key]  # the CPU's executables say nothing of their code
        }
        text = ", ".join(f"{key} {ratio:.2f}" for key, ratio in ratios.items())
        lines.append(f"{execution} for {topology or 'CPU'}, {deepest} layers over 8 (target {FLATNESS_TARGET}): {text}")
    return lines


def show_memory(rows: Sequence[Row], title: str, console: Console) -> None:
    sizes = ("arguments", "temporaries", "host_temporaries", "total")
    columns = (*(size.replace("_temporaries", "") for size in sizes), "of HBM", "fits", "FLOPs again")
    table = Table("keep", *columns, "capture s", "lower s", "compile s", "RSS", title=f"{title}; GiB of one device")
    least = next((row.get("matmul_flops") for row in rows if row["keep"] == "save_all"), None)
    for row in rows:
        if "failed" in row:
            table.add_row(row["keep"], row["failed"])
            continue
        chip, memory = topology_chip(row["topology"]), row["memory"]
        hbm = chip.hbm_bytes / chip.devices
        total = memory["total"] if memory else row["refused"]
        figures = [_gib(memory[size]) for size in sizes] if memory else ["", "", "", f"at least {_gib(total)}"]
        again = f"{row['matmul_flops'] / least - 1:.1%}" if least else ""
        seconds = [f"{row['capture']:.1f}", f"{row['lower']:.1f}", f"{row['compile']:.0f} ({row['compile_cpu']:.0f})"]
        figures += [f"{total / hbm:.0%}", "yes" if total <= hbm else "no", again]
        table.add_row(row["keep"], *figures, *seconds, _gib(row["peak_rss"]))
    console.print(table)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"


@click.command()
@click.argument("parts", nargs=-1, required=True, type=click.Choice(["flatness", "policies", "large"]))
@click.option("--layers", multiple=True, type=int, default=(2, 8, 32, 94, 126), show_default=True, help="Of flatness.")
@click.option(
    "--executions", multiple=True, default=("loop", "split", "unrolled"), show_default=True, help="Of flatness."
)
@click.option("--keep", "keeps", multiple=True, default=tuple(POLICIES), show_default=True, help="Of policies.")
@click.option("--show", is_flag=True, help="Compile nothing, print what the results file has.")
def main(
    parts: Sequence[str], layers: Sequence[int], executions: Sequence[str], keeps: Sequence[str], show: bool
) -> None:
    """Compile training steps of many depths and policies; print tables and write results/depth.json."""
    measure = {"flatness": lambda: flatness(layers, executions), "policies": lambda: policies(keeps), "large": large}
    console = Console(width=160)
    for part in parts:
        for row in () if show else measure[part]():
            store(part, row)
        if part == "flatness":
            show_flatness(stored(part), console)
        else:
            what = f"8B on {POLICIES_TPU}" if part == "policies" else f"405B on {LARGE_TPU}"
            show_memory(stored(part), f"Llama 3.1 {what}", console)


if __name__ == "__main__":
    main()
