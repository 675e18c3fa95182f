"""The search, with a made-up compiler: what it compiles and what it does not, how it stops and goes on."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.status import Status

from wholestep.errors import ConfigError, DeviceMemoryError, LoweringError
from wholestep.pipeline import Recipe
from wholestep.plan.isolated import CompilerError, CompilerTimeoutError
from wholestep.plan.job import Job
from wholestep.plan.space import Space
from wholestep.plan.trials import Trial, Trials
from wholestep.plan.tune import LARGER, TOO_LARGE, TOO_SLOW, Tuned, tune
from wholestep.plan.tune_view import Display, draw_trade, train_command, tuned_view

GIB = 2**30
AVAILABLE = 31 * GIB


def rows(recipe: Recipe) -> int:
    return recipe.batch_size // recipe.mesh.size // recipe.microbatches


def speed(recipe: Recipe) -> float:
    """As if rows and the fused loss helped, microbatches hurt, and flags helped most."""
    return 1000 * rows(recipe) * (1 + recipe.microbatches) ** -0.5 * 1.1 ** len(recipe.flags)


@dataclass
class Compiler:
    """Makes figures up; a second of `now` passes with each."""

    needs: Callable[[Recipe], int] = lambda recipe: 4 * GIB * rows(recipe)
    fails: Callable[[Recipe], Exception | None] = lambda recipe: None
    seconds: float = 1.0
    now: float = 0.0
    compiled: list[Recipe] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)

    def __call__(self, job: Job, progress: Callable[[float, int], None], timeout: float) -> Trial:
        recipe = job.build()
        progress(0.5, GIB)
        self.compiled.append(recipe)
        self.timeouts.append(timeout)
        self.now += min(self.seconds, timeout)
        if self.seconds > timeout:
            raise CompilerTimeoutError(f"the compiler was not done after {timeout:.0f} s")
        if (error := self.fails(recipe)) is not None:
            raise error
        step = recipe.batch_size * recipe.sequence_length / speed(recipe) / job.chips
        return Trial(
            needed=self.needs(recipe),
            available=AVAILABLE,
            low=step / 2,
            expected=step,
            high=step * 2,
            tokens_per_second_per_chip=speed(recipe),
        )


def space(*overrides: str, recipe: str = "llama3_debug") -> Space:
    return Space.of(Job(recipe=recipe, topology="v6e:2x2", overrides=overrides))


def search(found: Space, compiler: Compiler, out: Path, budget: float = 1e6) -> tuple[Tuned, str]:
    """What it came to, and what was said on the way."""
    console = Console(file=io.StringIO(), width=200)
    with Status("", console=console) as status:
        tuned = tune(
            found, Trials(out / "tried.jsonl"), budget, Display(console, status, budget), compiler, lambda: compiler.now
        )
    return tuned, console.file.getvalue()


def text(tuned: Tuned) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(tuned_view(tuned))
    return console.file.getvalue()


def test_it_finds_the_best_of_a_space_whose_groups_do_not_depend_on_each_other(tmp_path: Path) -> None:
    found, compiler = space("mesh.fsdp=4"), Compiler()
    tuned, said = search(found, compiler, tmp_path)
    assert tuned.stopped == ""
    assert set(tuned.settings) == {
        "mesh.fsdp=4", "batch_size=24", "flags=latency_hiding,async_all_gather,vmem_96m,all_gather_fusion"
    }  # fmt: skip
    assert tuned.best.speed == max(trial.speed for trial in tuned.trials)
    assert len(compiler.compiled) < found.size / 5
    assert len(said.splitlines()) == len(tuned.trials)


def test_what_cannot_fit_is_not_compiled(tmp_path: Path) -> None:
    """The scores of 512 heads are 34 GiB a row: nothing that saves them fits, the recipe itself among it."""
    wide = (
        "sequence_length=2048",
        "model.layers.*.attention.num_heads=512",
        "model.layers.*.attention.inner=dot_product",
    )
    found, compiler = space("layers.execution=loop", *wide), Compiler(needs=lambda recipe: GIB)
    tuned, _ = search(found, compiler, tmp_path)
    assert tuned.left_out.get(TOO_LARGE, 0) > 0
    assert {recipe.layers.keep for recipe in compiler.compiled} > {"recompute_all", "save_matmuls"}
    assert "save_all" not in {recipe.layers.keep for recipe in compiler.compiled}
    assert tuned.own is None
    assert tuned.best is not None


def test_nothing_is_compiled_once_the_best_is_as_fast_as_arithmetic_allows(tmp_path: Path) -> None:
    found, compiler = space(), Compiler()
    fast = lambda job, progress, timeout: replace(  # noqa: E731
        compiler(job, progress, timeout), tokens_per_second_per_chip=1e12
    )
    with Status("", console=Console(file=io.StringIO())) as status:
        display = Display(Console(file=io.StringIO()), status, 1.0)
        tuned = tune(found, Trials(tmp_path / "fast.jsonl"), 1e6, display, fast, lambda: compiler.now)
    assert len(compiler.compiled) == 1
    assert set(tuned.left_out) == {TOO_SLOW}


def test_more_than_what_does_not_fit_is_not_compiled(tmp_path: Path) -> None:
    found, compiler = space("microbatches=1"), Compiler(needs=lambda it: 9 * GIB * rows(it))
    tuned, _ = search(found, compiler, tmp_path)
    assert tuned.left_out.get(LARGER, 0) > 0
    assert tuned.best.needed == 27 * GIB
    assert [rows(recipe) for recipe in compiler.compiled].count(16) == 1


def test_a_second_run_goes_on_where_the_first_one_stopped(tmp_path: Path) -> None:
    found = space("mesh.fsdp=4")
    whole = Compiler()
    expected, _ = search(found, whole, tmp_path / "whole")
    first, second = Compiler(), Compiler()
    stopped, _ = search(found, first, tmp_path / "parts", budget=5)
    assert stopped.stopped == "budget"
    assert len(first.compiled) == 5
    resumed, said = search(found, second, tmp_path / "parts")
    assert [*first.compiled, *second.compiled] == whole.compiled
    assert resumed.trials == expected.trials
    assert said.count("before]") == 5


def test_a_file_that_was_cut_short_is_gone_on_from(tmp_path: Path) -> None:
    found, file = space("mesh.fsdp=4"), tmp_path / "tried.jsonl"
    first = Compiler()
    search(found, first, tmp_path, budget=5)
    whole = file.read_text()
    file.write_text(whole[:-20])
    again = Compiler()
    search(found, again, tmp_path, budget=5)
    assert again.compiled[0] == first.compiled[-1]
    lines = file.read_text().splitlines()
    assert lines[:4] == whole.splitlines()[:4]
    assert lines[5] == whole.splitlines()[4]


def test_other_settings_are_other_trials(tmp_path: Path) -> None:
    search(space("mesh.fsdp=4"), Compiler(), tmp_path, budget=5)
    other = Compiler()
    search(space("mesh.fsdp=4", "sequence_length=512"), other, tmp_path, budget=5)
    assert len(other.compiled) == 5


def test_the_budget_bounds_every_candidate_too(tmp_path: Path) -> None:
    compiler = Compiler(seconds=7.0)
    tuned, _ = search(space("mesh.fsdp=4"), compiler, tmp_path, budget=20)
    assert compiler.timeouts == [5.0, 5.0, 5.0, 5.0]
    assert tuned.stopped == "budget"
    assert not (tmp_path / "tried.jsonl").exists()
    later = Compiler(seconds=7.0)
    tuned, _ = search(space("mesh.fsdp=4"), later, tmp_path, budget=40)
    assert tuned.best is not None


def test_a_crash_is_one_candidates(tmp_path: Path) -> None:
    def fails(recipe: Recipe) -> Exception | None:
        return CompilerError("the compiler crashed") if recipe.flags else None

    tuned, said = search(space("mesh.fsdp=4"), Compiler(fails=fails), tmp_path)
    assert set(tuned.settings) == {"mesh.fsdp=4", "batch_size=24"}
    assert "failed, the compiler crashed: flags=latency_hiding,async_all_gather" in said
    again = Compiler(fails=fails)
    search(space("mesh.fsdp=4"), again, tmp_path)
    assert again.compiled == []


def test_what_is_wrong_with_the_recipe_itself_is_said(tmp_path: Path) -> None:
    with pytest.raises(LoweringError, match="no such operator"):
        search(space(), Compiler(fails=lambda recipe: LoweringError("no such operator")), tmp_path)


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    compiler = Compiler()

    def fails(recipe: Recipe) -> Exception | None:
        if len(compiler.compiled) == 4:
            raise KeyboardInterrupt
        return None

    compiler.fails = fails
    tuned, _ = search(space("mesh.fsdp=4"), compiler, tmp_path)
    assert tuned.stopped == "interrupted"
    assert len(tuned.trials) == 3
    assert len((tmp_path / "tried.jsonl").read_text().splitlines()) == 3


def test_when_nothing_fits_the_nearest_is_named(tmp_path: Path) -> None:
    found = space("mesh.fsdp=4", "microbatches=1", "flags=")
    compiler = Compiler(needs=lambda it: 40 * GIB - GIB * (it.model.lm_head.inner.node_name == "fused"))
    tuned, _ = search(found, compiler, tmp_path)
    assert tuned.best is None
    assert tuned.settings == ()
    assert tuned.nearest.overrides[-1] == "model.lm_head.inner=fused"
    assert "nothing that was tried fits" in text(tuned)
    assert "nearest: does not fit, 39.00 GiB of 31.00 GiB" in text(tuned)
    draw_trade(tuned, "title", tmp_path / "trade.png")


def test_what_cannot_even_be_placed_does_not_fit(tmp_path: Path) -> None:
    def fails(recipe: Recipe) -> Exception | None:
        return DeviceMemoryError(500 * GIB, AVAILABLE) if rows(recipe) > 2 else None

    tuned, _ = search(space("microbatches=1"), Compiler(fails=fails), tmp_path)
    assert "batch_size=8" in tuned.settings
    assert tuned.left_out.get(LARGER, 0) > 0
    draw_trade(tuned, "title", tmp_path / "trade.png")


def test_the_view_names_the_winner_and_its_gain(tmp_path: Path) -> None:
    found = space("mesh.fsdp=4")
    tuned, _ = search(found, Compiler(), tmp_path)
    shown = text(tuned)
    assert f" 1 {' '.join(tuned.best.overrides)}\n" in shown
    assert f"{tuned.best.speed / tuned.own.speed:.2f} times the tokens/s/chip of the recipe as it is" in shown
    assert f"of {found.size:,} candidates" in shown
    draw_trade(tuned, "title", tmp_path / "trade.png")
    assert (tmp_path / "trade.png").stat().st_size > 10_000


def test_a_command_is_as_a_shell_takes_it() -> None:
    assert train_command("x", ["model.layers.*.attention.inner=splash", "a=1"]) == (
        "wholestep train x --set 'model.layers.*.attention.inner=splash' --set a=1"
    )


def test_a_wrong_setting_is_said_before_anything_is_compiled() -> None:
    with pytest.raises(ConfigError, match="batch_size 3 does not divide"):
        space("batch_size=3")
