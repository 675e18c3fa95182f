"""`wholestep chips`: what each chip can do, and who says so."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.console import Console
from rich.table import Table

from wholestep.cli.options import json_option
from wholestep.xla.chips import ANNOUNCED, CHIPS, Chip, Figures


@click.command()
@json_option
def chips(as_json: bool) -> None:
    """List the chips: computation, memory, interconnect, and topologies to compile for."""
    rows = (*CHIPS, *ANNOUNCED)
    if as_json:
        click.echo(json.dumps([{**dataclasses.asdict(row), "announced": not isinstance(row, Chip)} for row in rows]))
        return
    console = Console()
    console.print(_table(rows))
    console.print(
        "* announced: libtpu does not compile for it. Clocks are inferred; a dash is what is not published.\n"
    )
    for row in rows:
        console.print(f"{row.name}: {row.source}", highlight=False)
        if isinstance(row, Chip):
            console.print(f"  {', '.join(row.topologies)}", highlight=False)


def _table(rows: tuple[Figures, ...]) -> Table:
    """Chips as columns, so that it fits a terminal's width."""
    table = Table("a chip", *(row.name if isinstance(row, Chip) else f"{row.name}*" for row in rows))
    lines = {
        "bf16 (TFLOP/s)": [_number(row.peak_flops, 1e12) for row in rows],
        "fp8 (TFLOP/s)": [_number(row.peak_fp8_flops, 1e12) for row in rows],
        "HBM (GiB)": [_number(row.hbm_bytes, 2**30) for row in rows],
        "HBM (GB/s)": [_number(row.hbm_bytes_per_second, 1e9) for row in rows],
        "ICI links": [_number(row.ici_links) for row in rows],
        "one link, one way (GB/s)": [_number(row.ici_bytes_per_second, 1e9) for row in rows],
        "torus dimensions": [_number(row.torus_dimensions) for row in rows],
        "largest pod (chips)": [_number(row.pod_chips) for row in rows],
        "DCN (GB/s)": [_number(row.dcn_bytes_per_second, 1e9) for row in rows],
        "SparseCores": [_number(row.sparse_cores) for row in rows],
        "JAX devices": [_number(row.devices) if isinstance(row, Chip) else "-" for row in rows],
        "clock (GHz)": [_clock(row) for row in rows],
    }
    for name, cells in lines.items():
        table.add_row(name, *cells)
    return table


def _number(value: float | None, unit: float = 1) -> str:
    return "-" if value is None else f"{value / unit:.4g}"


def _clock(row: Figures) -> str:
    if not isinstance(row, Chip):
        return "-"
    low, high = (_number(clock, 1e9) for clock in row.clock_hz)
    return low if low == high else f"{low} to {high}"
