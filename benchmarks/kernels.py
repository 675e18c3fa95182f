"""What each kernel saves, by the TPU compiler: memory and cycles of real layers with it and without.

    python benchmarks/kernels.py [--model NAME] [--topology NAME] [--show]

A row is a training step of a few layers of a published size, on eight devices, as its recipe has it but for the
kernels: none, then one more at a time. It comes from a fresh process and takes the place of the same row of an earlier
run in results/kernels.json; docs/kernels.md shows them. Nothing runs: cycles are the compiler's estimates. It has none
for Pallas kernels, which are given the cycles that their FLOPs take at the chip's peak, the least that they can take.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from compiled_step import Case, in_own_process
from machine import machine
from rich.console import Console
from rich.markdown import Markdown

from wholestep.kernels import KERNELS
from wholestep.xla.topologies import topology_chip

RESULTS = Path(__file__).parent / "results" / "kernels.json"
PAGE = Path(__file__).parents[1] / "docs" / "kernels.md"
MARKS = ("<!-- by benchmarks/kernels.py -->", "<!-- end -->")
MEMORY_LIMIT = 20 * 2**30
TIMEOUT = 3600.0
TOPOLOGIES = ("v6e:2x4", "tpu7x:2x2x1")

Row = dict[str, Any]
LABELS = ("model", "kernels", "topology")


@dataclass(frozen=True)
class Model:
    """A published size: its recipe, how many layers are compiled, rows of the batch on each device, its blocks."""

    recipe: str
    layers: int
    rows: int
    paths: tuple[str, ...]

    def assignments(self, kernels: Sequence[str]) -> tuple[str, ...]:
        plain = {kernel.path: kernel.replaces.node_name for kernel in KERNELS if kernel.path in self.paths}
        chosen = {kernel.path: kernel.name for kernel in KERNELS if kernel.name in kernels}
        return (
            f"model.layers={self.layers}",
            "mesh.fsdp=8",
            f"batch_size={8 * self.rows}",
            *(f"{path}={name}" for path, name in {**plain, **chosen}.items()),
        )


DENSE = ("model.layers.*.attention.inner", "model.lm_head.inner")
MIXTURE = (*DENSE, "model.layers.*.feed_forward.inner", "model.layers.*.feed_forward.route_score")
MODELS = {
    model.recipe: model
    for model in (
        Model("llama3_8b", 4, 1, DENSE),
        Model("qwen3_8b", 4, 1, DENSE),
        Model("muse_glimmer_30b", 4, 1, DENSE),
        Model("qwen3_30b_a3b", 2, 2, MIXTURE),
        Model("qwen3_235b_a22b", 2, 2, MIXTURE),
    )
}


def choices(model: Model) -> list[tuple[str, ...]]:
    """No kernels, then one more at a time. Of a mixture, whose plain experts multiply every row with every expert,
    `ragged_dot` is what stands for none."""
    if model.paths == DENSE:
        return [(), ("splash",), ("splash", "fused")]
    return [
        ("ragged_dot",),
        ("splash", "ragged_dot"),
        ("splash", "grouped_matmul"),
        ("splash", "grouped_matmul", "route_score"),
        ("splash", "grouped_matmul", "route_score", "fused"),
    ]


def measure(model: Model, topologies: Sequence[str]) -> Iterator[Row]:
    for topology in topologies:
        for kernels in choices(model):
            print("compiling", model.recipe, kernels, "for", topology, flush=True)
            case = Case(recipe=model.recipe, assignments=model.assignments(kernels), topology=topology)
            labels = {"model": model.recipe, "kernels": list(kernels), "topology": topology}
            yield {**labels, **in_own_process(case, MEMORY_LIMIT, TIMEOUT)}


def stored() -> list[Row]:
    return json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []


def store(row: Row) -> None:
    """Put a row into the results file, in place of the one of the same labels."""
    rows = [old for old in stored() if any(old[label] != row[label] for label in LABELS)]
    RESULTS.write_text(json.dumps({"machine": machine(), "rows": [*rows, row]}, indent=1) + "\n")


def tables(rows: Sequence[Row]) -> str:
    """What there is, in Markdown, a table for each model."""
    texts = []
    for recipe, model in MODELS.items():
        own = [row for row in rows if row["model"] == recipe]
        if not own:
            continue
        places = "row" if model.rows == 1 else "rows"
        lines = [
            f"**{recipe}**, {model.layers} layers, {model.rows} {places} a device, 8 devices",
            "",
            "| for | kernels | temporaries, GiB | Mcycles | of them Pallas, at least | ms, at least | compiled in, s |",
            "|---|---|---:|---:|---:|---:|---:|",
        ]
        for row in sorted(own, key=lambda row: (row["topology"], choices(model).index(tuple(row["kernels"])))):
            names = ", ".join(row["kernels"]) or "none"
            lines.append(f"| {row['topology']} | {names} | {' | '.join(cells(row))} |")
        texts.append("\n".join(lines))
    return "\n\n".join(texts)


def cells(row: Row) -> list[str]:
    if "failed" in row:
        return [f"failed: {row['failed']}", *[""] * 4]
    if row["memory"] is None:
        return [f"more than {row['refused'] / 2**30:.0f}: refused", *[""] * 4]
    chip = topology_chip(row["topology"])
    clock, peak = chip.clock_hz[0], chip.peak_flops / chip.devices
    kernel = row["kernel_flops"] / peak * clock
    total = sum(row["cycles"].values()) + kernel
    return [
        f"{row['memory']['temporaries'] / 2**30:.2f}",
        f"{total / 1e6:,.0f}",
        f"{kernel / 1e6:,.0f}",
        f"{total / clock * 1e3:.0f}",
        f"{row['compile']:.0f}",
    ]


def write_page(text: str) -> None:
    """Put the tables into docs/kernels.md, between its marks."""
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")


@click.command(help=__doc__)
@click.option("--model", "names", multiple=True, type=click.Choice(list(MODELS)), help="Of these models only.")
@click.option("--topology", "topologies", multiple=True, default=TOPOLOGIES, help="For these only.")
@click.option("--show", "only_show", is_flag=True, help="Compile nothing; show what there is.")
def main(names: tuple[str, ...], topologies: tuple[str, ...], only_show: bool) -> None:
    if not only_show:
        for name in names or MODELS:
            for row in measure(MODELS[name], topologies):
                store(row)
    write_page(tables(stored()))
    Console().print(Markdown(tables(stored())))


if __name__ == "__main__":
    main()
