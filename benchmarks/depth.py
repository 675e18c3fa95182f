"""Does the program grow with the number of layers, and what does it need of a device? By compiling, without running.

    python benchmarks/depth.py flatness policies large

Every row comes from a fresh process, without a compile cache. TPU programs are compiled by the real TPU compiler for a
topology that is not here; nothing is said about how fast they run.

- `flatness`: one small Llama at several depths. *capture* is everything from the recipe to the step graph, the median
  of three processes. Unrolled layers are compiled for TPU up to 32 only: that takes minutes.
- `policies`: Llama 3.1 8B on eight v6e chips, one row of 8,192 tokens each: what each policy for the backward pass
  (`layers.keep`) keeps on the device and on the host, and how many matrix FLOPs it repeats, against `save_all`.
- `large`: Llama 3.1 405B on 128 TPU7x chips (256 devices).

Attention is the plain one, whose scores lie in memory whole. A program that does not fit is compiled all the same, to
see by how much.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
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
SMALL_TPU, POLICIES_TPU, LARGE_TPU = "v6e:2x2", "v6e:2x4", "tpu7x:4x4x8"
UNROLLED_TPU_LIMIT = 32
FLATNESS_TARGET = 1.2

Row = dict[str, Any]
Save = Callable[[list[Row]], None]


def measured(case: Case, **labels: Any) -> Row:
    print("compiling" if case.compiled else "capturing", labels, flush=True)
    return {**labels, "topology": case.topology, **in_own_process(case, MEMORY_LIMIT, TIMEOUT)}


def flatness(layers: Sequence[int], executions: Sequence[str], save: Save) -> list[Row]:
    """One row for each execution, depth and compiler."""
    rows: list[Row] = []
    for execution in executions:
        for depth in layers:
            assignments = ("mesh.fsdp=4", "batch_size=4", "precision.gather=bfloat16", f"layers.execution={execution}")
            own = []
            for topology in (None, SMALL_TPU):
                compiled = topology is None or execution != "unrolled" or depth <= UNROLLED_TPU_LIMIT
                case = Case(
                    recipe="llama3_debug", assignments=assignments, layers=depth, topology=topology, compiled=compiled
                )
                own.append(measured(case, execution=execution, layers=depth))
            case = Case(recipe="llama3_debug", assignments=assignments, layers=depth, compiled=False)
            again = measured(case, execution=execution, layers=depth)
            captures = [row["capture"] for row in (*own, again) if "capture" in row]
            for row in own:
                row["capture"] = statistics.median(captures) if captures else None
            rows += own
            save(rows)
    return rows


def policies(keeps: Sequence[str], save: Save) -> list[Row]:
    """One row for each policy."""
    rows: list[Row] = []
    for keep in keeps:
        assignments = ("layers.execution=loop", f"layers.keep={keep}")
        rows.append(measured(Case(recipe="llama3_8b", assignments=assignments, topology=POLICIES_TPU), keep=keep))
        save(rows)
    return rows


def large(save: Save) -> list[Row]:
    assignments = ("layers.execution=loop", "layers.keep=recompute_all")
    rows = [measured(Case(recipe="llama3_405b", assignments=assignments, topology=LARGE_TPU), keep="recompute_all")]
    save(rows)
    return rows


def show_flatness(rows: Sequence[Row], console: Console) -> None:
    columns = ("capture s", "lower s", "compile s", "StableHLO KB", "HLO instr.", "code MB", "temp MB", "executables")
    table = Table("execution", "layers", "for", *columns, title="one small Llama, mesh fsdp=4")
    for row in rows:
        label = (row["execution"], str(row["layers"]), row["topology"] or "CPU")
        table.add_row(*label, *(["failed: " + row["failed"]] if "failed" in row else _flatness_cells(row)))
    console.print(table)
    for line in growth(rows):
        console.print(line)


def _flatness_cells(row: Row) -> list[str]:
    start = [f"{row['capture']:.2f}", f"{row['lower']:.2f}"]
    if row["compile"] is None:
        return [*start, "minutes: not tried", f"{row['stablehlo'] / 1e3:,.0f}"]
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
            key: own[deepest][key] / own[8][key]
            for key in ("capture", "lower", "compile", "stablehlo", "instructions", "code")
        }
        text = ", ".join(f"{key} {ratio:.2f}" for key, ratio in ratios.items())
        lines.append(f"{execution} for {topology or 'CPU'}, {deepest} layers over 8 (target {FLATNESS_TARGET}): {text}")
    return lines


def show_memory(rows: Sequence[Row], title: str, console: Console) -> None:
    sizes = ("arguments", "temporaries", "host_temporaries", "total")
    columns = (*(size.replace("_temporaries", "") for size in sizes), "of HBM", "fits", "FLOPs again")
    seconds = ("capture", "lower", "compile")
    table = Table("keep", *columns, *(f"{each} s" for each in seconds), "RSS", title=f"{title}; GiB of one device")
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
        figures += [f"{total / hbm:.0%}", "yes" if total <= hbm else "no", again]
        table.add_row(row["keep"], *figures, *(f"{row[key]:.1f}" for key in seconds), _gib(row["peak_rss"]))
    console.print(table)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"


def save_part(part: str, rows: list[Row]) -> None:
    """Put a part's rows into the results file and leave the other parts as they are."""
    report = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    report[part] = {"machine": machine(), "rows": rows}
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


@click.command()
@click.argument("parts", nargs=-1, required=True, type=click.Choice(["flatness", "policies", "large"]))
@click.option("--layers", multiple=True, type=int, default=(2, 8, 32, 94, 126), show_default=True, help="Of flatness.")
@click.option("--executions", multiple=True, default=("loop", "unrolled"), show_default=True, help="Of flatness.")
@click.option("--keep", "keeps", multiple=True, default=tuple(POLICIES), show_default=True, help="Of policies.")
def main(parts: Sequence[str], layers: Sequence[int], executions: Sequence[str], keeps: Sequence[str]) -> None:
    """Compile training steps of many depths and policies; print tables and write results/depth.json."""
    console = Console(width=150)
    for part in parts:

        def save(rows: list[Row], part: str = part) -> None:
            save_part(part, rows)

        if part == "flatness":
            show_flatness(flatness(layers, executions, save), console)
        elif part == "policies":
            show_memory(policies(keeps, save), f"Llama 3.1 8B on {POLICIES_TPU}", console)
        else:
            show_memory(large(save), f"Llama 3.1 405B on {LARGE_TPU}", console)


if __name__ == "__main__":
    main()
