"""What a run came to: one screen of text, one JSON object, one picture."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from wholestep.train.metrics import read_metrics
from wholestep.train.run_directory import RunDirectory
from wholestep.train.trainer import Outcome


def summarize(outcome: Outcome, recipe_name: str, parameters: int, run: RunDirectory) -> dict[str, Any]:
    """The figures of a run, from its outcome and its recorded steps. Medians leave out slow first steps."""
    steps = [line for line in read_metrics(run.metrics) if line["kind"] == "train"]
    medians = {name: _median(steps, name) for name in ("seconds", "tokens_per_second", "mfu")}
    return {
        "recipe": recipe_name,
        "parameters": parameters,
        "steps": outcome.step,
        "interrupted": outcome.interrupted,
        "tokens": sum(step["tokens"] for step in steps),
        "training_seconds": sum(step["seconds"] for step in steps),
        "train_loss": outcome.last.loss if outcome.last else None,
        "validation_loss": outcome.validation.loss,
        "unigram_entropy": outcome.validation.unigram_entropy,
        "validation_tokens": outcome.validation.tokens,
        "median_step_seconds": medians["seconds"],
        "median_tokens_per_second": medians["tokens_per_second"],
        "median_mfu": medians["mfu"],
        "peak_flops": outcome.peak.flops if outcome.peak else None,
        "peak_source": outcome.peak.source if outcome.peak else None,
        "memory_bytes": outcome.last.memory_bytes if outcome.last else None,
        "directory": str(run.path),
        "loss_curve": str(run.loss_curve),
    }


def summary_table(summary: dict[str, Any]) -> Table:
    """The figures for people."""
    table = Table(title="interrupted; --resume continues" if summary["interrupted"] else "done", show_header=False)
    table.add_row("recipe", f"{summary['recipe']}, {summary['parameters']:,} parameters")
    table.add_row("steps", f"{summary['steps']:,} ({summary['tokens']:,} tokens, {summary['training_seconds']:.0f} s)")
    if summary["train_loss"] is not None:
        table.add_row("training loss", f"{summary['train_loss']:.3f} nats")
    table.add_row("held-out loss", f"{summary['validation_loss']:.3f} nats ({summary['validation_tokens']:,} tokens)")
    table.add_row("their unigram entropy", f"{summary['unigram_entropy']:.3f} nats")
    if summary["median_step_seconds"] is not None:
        table.add_row(
            "speed (median)",
            f"{summary['median_step_seconds'] * 1000:.0f} ms/step, {summary['median_tokens_per_second']:,.0f} tokens/s",
        )
    if summary["median_mfu"] is not None:
        peak = f"{summary['peak_flops'] / 1e12:.3g} TFLOP/s, {summary['peak_source']}"
        table.add_row("MFU (median)", f"{summary['median_mfu']:.1%} of {peak}")
    if summary["memory_bytes"] is not None:
        table.add_row("memory", f"{summary['memory_bytes'] / 2**30:.2f} GiB")
    table.add_row("folder", summary["directory"])
    table.add_row("loss curve", summary["loss_curve"])
    return table


def draw_loss_curve(metrics: Path, picture: Path) -> None:
    """Training and held-out loss over the steps, with the unigram entropy as a line to be below."""
    lines = list(read_metrics(metrics))
    train = [line for line in lines if line["kind"] == "train"]
    validation = [line for line in lines if line["kind"] == "validation"]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([line["step"] for line in train], [line["loss"] for line in train], linewidth=1, label="training loss")
    axes.plot([line["step"] for line in validation], [line["loss"] for line in validation], "o-", label="held-out loss")
    if validation:
        axes.axhline(
            validation[-1]["unigram_entropy"], color="gray", linestyle="--", label="unigram entropy of held-out text"
        )
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=120)


def _median(steps: list[dict[str, Any]], name: str) -> float | None:
    values = [step[name] for step in steps if step[name] is not None]
    return statistics.median(values) if values else None
