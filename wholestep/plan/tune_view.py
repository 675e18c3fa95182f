"""A search as people follow it, and what it came to: a table, a picture, and the command that trains the best."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console, Group, RenderableType
from rich.status import Status
from rich.text import Text

from wholestep.plan import units
from wholestep.plan.show import plain_table
from wholestep.plan.trials import Trial
from wholestep.plan.tune import Progress, Tuned

SHOWN = 10
_LOGARITHMIC = 8
"""From this many times the smallest program's memory on, what a device has is far away."""


class Display:
    """A line for every trial, and what is compiled now with the time that passed and is left."""

    def __init__(self, console: Console, status: Status, budget: float) -> None:
        self._console, self._status, self._budget = console, status, budget
        self._began = time.monotonic()
        self._count, self._best = 0, ""

    def compiling(self, overrides: tuple[str, ...]) -> Progress:
        what = settings_text(overrides)

        def show(seconds: float, size: int) -> None:
            passed = f"{_minutes(time.monotonic() - self._began)} of {_minutes(self._budget)}"
            now = units.compiling(seconds, size)
            self._status.update(Text(f"{passed}, {self._count} tried{self._best}; compiling {what}: {now}"))

        show(0.0, 0)
        return show

    def tried(self, trial: Trial, best: Trial | None, known: bool) -> None:
        self._count += 1
        self._best = f", best {best.speed:,.0f} tokens/s/chip" if best else ""
        when = "before" if known else _minutes(time.monotonic() - self._began)
        line = f"[{when:>6}] {_result(trial)}: {settings_text(trial.overrides)}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def tuned_view(tuned: Tuned) -> RenderableType:
    """The best, what was set in each, what was not compiled and why, and the gain over the recipe as it is."""
    ranked = sorted(tuned.trials, key=lambda it: (-it.speed, it.needed or 0))[:SHOWN]
    columns = {"": True, "tokens/s/chip": True, "step": True, "at best, at worst": True, "needs": True, "fits": False}
    parts: list[RenderableType] = [
        plain_table(columns, ((str(place), *_row(trial)) for place, trial in enumerate(ranked, 1))),
        Text(""),
        *(Text(f"{place:2} {settings_text(trial.overrides)}") for place, trial in enumerate(ranked, 1)),
        Text(f"\n{_counts(tuned)}"),
    ]
    if tuned.stopped:
        parts.append(Text(f"stopped ({tuned.stopped}); the same command goes on from here", style="yellow"))
    if tuned.best is None:
        parts += _nothing_fits(tuned)
    else:
        parts.append(Text.assemble(("predicted from compiled programs, not measured; ", "dim"), _gain(tuned)))
    return Group(*parts)


def train_command(recipe: str, settings: Sequence[str]) -> str:
    """As a shell takes it."""
    return shlex.join(["wholestep", "train", recipe, *(word for each in settings for word in ("--set", each))])


def draw_trade(tuned: Tuned, title: str, picture: Path) -> None:
    """Memory against speed of every program that was compiled, with the line that they have to stay left of."""
    compiled = [it for it in tuned.trials if it.needed and it.tokens_per_second_per_chip]
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for fits, color, inside in ((True, "tab:blue", "tab:blue"), (False, "tab:red", "none")):
        points = [it for it in compiled if it.fits is fits]
        x, y = [(it.needed or 0) / 2**30 for it in points], [it.tokens_per_second_per_chip or 0.0 for it in points]
        label = f"{'fits' if fits else 'does not fit'} ({len(points)})"
        axes.scatter(x, y, facecolors=inside, edgecolors=color, label=label)
    if compiled:
        limit = (compiled[0].available or 0) / 2**30
        needed = [(it.needed or 0) / 2**30 for it in compiled]
        axes.axvline(limit, color="gray", linestyle="--", label=f"a device has {limit:.2f} GiB")
        if limit > _LOGARITHMIC * min(needed):
            axes.set_xscale("log")
        axes.set_xlim(left=min(needed) * 0.7, right=min(max(limit, *needed) * 1.2, limit * 2))
    if tuned.best is not None:
        at = (tuned.best.needed or 0) / 2**30, tuned.best.speed
        axes.scatter(*at, s=160, marker="*", color="tab:orange", zorder=3, label="the best that fits")
        text = "\n".join(tuned.best.overrides) or "as the recipe is"
        axes.annotate(text, at, xytext=(10, 2), textcoords="offset points", fontsize=8)
    axes.set(title=title, xlabel="memory of a device, GiB", ylabel="tokens/s/chip, predicted")
    axes.set_ylim(bottom=0, top=max((it.tokens_per_second_per_chip or 0.0 for it in compiled), default=1.0) * 1.15)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="lower center")
    axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=120)


def settings_text(overrides: Iterable[str]) -> str:
    return " ".join(overrides) or "as the recipe is"


def _row(trial: Trial) -> tuple[str, ...]:
    known = trial.low is not None and trial.expected is not None and trial.high is not None
    return (
        f"{trial.tokens_per_second_per_chip:,.0f}" if trial.tokens_per_second_per_chip else "-",
        units.seconds(trial.expected or 0.0) if known else "-",
        f"{units.seconds(trial.low or 0.0)}, {units.seconds(trial.high or 0.0)}" if known else "-",
        units.gib(trial.needed) if trial.needed else "-",
        "yes" if trial.fits else "no" if trial.too_large else "failed",
    )


def _result(trial: Trial) -> str:
    if trial.fits:
        return f"{trial.speed:,.0f} tokens/s/chip, {units.gib(trial.needed or 0)}"
    if trial.too_large:
        return f"does not fit, {units.gib(trial.needed or 0)} of {units.gib(trial.available or 0)}"
    return f"failed, {trial.error}"


def _counts(tuned: Tuned) -> str:
    failed = sum(not it.fits and not it.too_large for it in tuned.trials)
    parts = [
        f"{len(tuned.trials)} tried: {sum(it.fits for it in tuned.trials)} fit, "
        f"{sum(it.too_large for it in tuned.trials)} do not" + (f", {failed} failed" if failed else ""),
        *(f"{count:,} not compiled: {why}" for why, count in sorted(tuned.left_out.items())),
    ]
    return f"of {tuned.size:,} candidates\n" + "\n".join(f"  {part}" for part in parts)


def _gain(tuned: Tuned) -> str:
    assert tuned.best is not None
    if tuned.own is None:
        return "the recipe as it is was not tried"
    if not tuned.own.fits:
        return f"the recipe as it is {'does not fit' if tuned.own.too_large else f'failed: {tuned.own.error}'}"
    if tuned.best is tuned.own:
        return "nothing tried is faster than the recipe as it is"
    return f"{tuned.best.speed / tuned.own.speed:.2f} times the tokens/s/chip of the recipe as it is"


def _nothing_fits(tuned: Tuned) -> Iterable[RenderableType]:
    yield Text("nothing that was tried fits", style="bold red")
    if (nearest := tuned.nearest) is not None:
        yield Text(f"nearest: {_result(nearest)}: {settings_text(nearest.overrides)}")


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)}:{int(seconds % 60):02}"
