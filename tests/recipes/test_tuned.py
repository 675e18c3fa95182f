"""Recipes that are made for a topology: they fit it, and their small twins train."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import corpus, own_cache

from wholestep.config.override import apply
from wholestep.kernels import turned_on
from wholestep.plan.job import Job
from wholestep.plan.published import METRICS, RESULTS
from wholestep.plan.report import Speed
from wholestep.recipes.registry import entries, find
from wholestep.recipes.twins import nano_twin
from wholestep.train.metrics import read_metrics
from wholestep.train.observer import Observer
from wholestep.train.run_directory import RunDirectory
from wholestep.train.trainer import Trainer
from wholestep.xla.chips import chip_of
from wholestep.xla.flags import compiler_options

__all__ = ["corpus", "own_cache"]

TUNED = [name for name, entry in entries().items() if entry.topology]
SHORT = ("steps=4", "optimizer.lr=0.003", "schedule.warmup_steps=1", "evaluation.batches=1")
# On a CPU, flags do nothing: recipes that differ in them and the learning rate alone have one twin here.
TWINS = {repr(apply(nano_twin(name), [*SHORT, "flags="])): name for name in TUNED}


@pytest.mark.parametrize("name", TUNED)
def test_a_recipe_fits_its_topology(name: str) -> None:
    job = Job.of(name)
    recipe = job.build()
    recipe.check()
    assert job.fitting() == () and recipe.mesh.size == job.devices
    assert recipe.mesh.replicate == job.slices
    mesh = job.mesh(recipe)
    compiler_options(recipe.flags, chip_of(mesh))


@pytest.mark.parametrize("name", sorted(TWINS.values()))
def test_a_twin_trains(name: str, corpus: Path, tmp_path: Path) -> None:
    whole, twin = find(name).function(), nano_twin(name)
    assert (twin.layers, twin.precision, turned_on(twin)) == (whole.layers, whole.precision, turned_on(whole))
    depth = 4 if "muse" in name else 2  # its pattern of layers has four
    small = ["model.vocab_size=384", "data.tokenizer_vocab_size=384", f"model.layers={depth}", f"data.source={corpus}"]
    run = RunDirectory(tmp_path / "run")
    Trainer(apply(twin, [*SHORT, *small]), run, Observer()).train(resume=False)
    losses = [line["loss"] for line in read_metrics(run.metrics) if line["kind"] == "train"]
    assert len(losses) == 4 and losses[-1] < losses[0]


def test_what_is_published_is_of_recipes_that_there_are() -> None:
    assert {one.recipe for one in RESULTS} <= set(TUNED)
    assert {one.metric for one in RESULTS} <= set(METRICS) and set(METRICS.values()) <= set(Speed.__annotations__)
