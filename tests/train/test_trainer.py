"""Runs: that they continue exactly, stop cleanly, compile once, and say what went wrong."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import TOLERANCE

from wholestep.checkpoint.checkpoints import Checkpoints
from wholestep.config.override import replace
from wholestep.errors import CheckpointError, ConfigError, NonFiniteError
from wholestep.pipeline import Recipe
from wholestep.train.loop import Loop
from wholestep.train.metrics import StepRecord, read_metrics
from wholestep.train.observer import Observer
from wholestep.train.run_directory import RunDirectory
from wholestep.train.state import initial_state
from wholestep.train.trainer import Trainer
from wholestep.xla.compile_cache import count_compiles


def final_state(run: RunDirectory) -> dict[str, np.ndarray]:
    with Checkpoints(run.checkpoints) as checkpoints:
        step = checkpoints.latest()
        return dict(checkpoints.tensors(step, checkpoints.describe(step)))


def losses(run: RunDirectory) -> list[float]:
    return [line["loss"] for line in read_metrics(run.metrics) if line["kind"] == "train"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[RunDirectory]:
    """Filled by the first test that needs it."""
    return []


def whole_run(recipe: Recipe, cached: list[RunDirectory], tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    if not cached:
        run = RunDirectory(tmp_path_factory.mktemp("whole"))
        Trainer(recipe, run).train()
        cached.append(run)
    return cached[0]


def test_two_resumes_continue_bit_for_bit(recipe, tmp_path, uninterrupted, tmp_path_factory) -> None:
    whole = whole_run(recipe, uninterrupted, tmp_path_factory)
    run = RunDirectory(tmp_path)
    assert Trainer(recipe, run).train(until=4).interrupted
    assert Trainer(recipe, run).train(until=7, resume=True).interrupted
    outcome = Trainer(recipe, run).train(resume=True)
    assert outcome.step == 10 and not outcome.interrupted
    assert losses(run) == losses(whole) and len(losses(run)) == 10
    expected, got = final_state(whole), final_state(run)
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        assert np.array_equal(value, got[name]), name


def test_a_run_moves_from_eight_devices_to_two(recipe, tmp_path, uninterrupted, tmp_path_factory) -> None:
    whole = whole_run(recipe, uninterrupted, tmp_path_factory)
    run = RunDirectory(tmp_path)
    Trainer(recipe, run).train(until=4)
    Trainer(replace(recipe, "mesh.fsdp", 2), run).train(resume=True)
    assert losses(run) == pytest.approx(losses(whole), rel=TOLERANCE[torch.float32])


def test_checkpoints_move_between_ways_to_run_the_layers(recipe, tmp_path, uninterrupted, tmp_path_factory) -> None:
    whole = whole_run(recipe, uninterrupted, tmp_path_factory)
    looped = replace(replace(recipe, "layers.execution", "loop"), "layers.keep", "recompute_all")
    split = replace(replace(recipe, "layers.execution", "split"), "optimizer_state", "host")
    run = RunDirectory(tmp_path)
    Trainer(looped, run).train(until=3)
    Trainer(recipe, run).train(until=5, resume=True)
    Trainer(split, run).train(until=7, resume=True)
    Trainer(replace(looped, "optimizer_state", "host"), run).train(resume=True)
    assert losses(run) == pytest.approx(losses(whole), rel=TOLERANCE[torch.float32])
    assert final_state(run).keys() == final_state(whole).keys()


def test_resuming_a_finished_run_changes_nothing(recipe, uninterrupted, tmp_path_factory) -> None:
    whole = whole_run(recipe, uninterrupted, tmp_path_factory)
    before = final_state(whole)
    outcome = Trainer(recipe, whole).train(resume=True)
    assert outcome.last is None and outcome.step == 10
    assert all(np.array_equal(before[name], value) for name, value in final_state(whole).items())


def test_learns_and_validates(recipe, tmp_path) -> None:
    outcome = Trainer(replace(recipe, "steps", 60), RunDirectory(tmp_path)).train()
    assert outcome.validation.loss < outcome.validation.unigram_entropy - 0.5
    assert outcome.validation.tokens > 100
    lines = list(read_metrics(RunDirectory(tmp_path).metrics))
    assert [line["step"] for line in lines if line["kind"] == "validation"] == list(range(4, 61, 4))
    assert any(RunDirectory(tmp_path).tensorboard.iterdir())
    with Checkpoints(RunDirectory(tmp_path).checkpoints) as checkpoints:
        assert checkpoints.steps() == [50, 55, 60]


def test_the_loop_compiles_nothing_and_the_step_once(recipe, tmp_path, monkeypatch) -> None:
    compiled_in_loop = []
    run_loop = Loop.run

    def counted(self: Loop, end: int):
        with count_compiles() as counts:
            result = run_loop(self, end)
        compiled_in_loop.append(counts.programs)
        return result

    monkeypatch.setattr(Loop, "run", counted)
    Trainer(replace(recipe, "steps", 20), RunDirectory(tmp_path)).train()
    assert compiled_in_loop == [0]


class StopAfter(Observer):
    def __init__(self, step: int, number: int) -> None:
        self._step, self._number = step, number

    def step(self, record: StepRecord, steps: int) -> None:
        if record.step == self._step:
            os.kill(os.getpid(), self._number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_cleanly(recipe, tmp_path, number, uninterrupted, tmp_path_factory) -> None:
    whole = whole_run(recipe, uninterrupted, tmp_path_factory)
    handler = signal.getsignal(number)
    run = RunDirectory(tmp_path)
    outcome = Trainer(recipe, run, StopAfter(6, number)).train()
    assert outcome.interrupted and 6 <= outcome.step < 10
    assert signal.getsignal(number) is handler
    Trainer(recipe, run).train(resume=True)
    assert losses(run) == losses(whole)


@pytest.mark.parametrize("step", [4, 6])  # where a validation is due and a save is not; where neither is
def test_a_stop_anywhere_saves_and_validates_the_last_step(recipe, tmp_path, step) -> None:
    run = RunDirectory(tmp_path)
    outcome = Trainer(recipe, run, StopAfter(step, signal.SIGTERM)).train()
    with Checkpoints(run.checkpoints) as checkpoints:
        assert checkpoints.latest() == outcome.step < 10
    validations = [line for line in read_metrics(run.metrics) if line["kind"] == "validation"]
    assert validations[-1]["step"] == outcome.step and validations[-1]["loss"] == outcome.validation.loss


def test_a_non_finite_parameter_is_named(recipe, tmp_path) -> None:
    def broken(recipe, step, mesh):
        state = initial_state(recipe, step, mesh)
        name = "parameter/layers.1.feed_forward.up_proj.weight"
        state[name] = state[name].at[0, 0].set(jnp.nan)
        return state

    run = RunDirectory(tmp_path)
    with pytest.raises(NonFiniteError, match=r"step 1: the loss is nan.*layers\.1\.feed_forward\.up_proj\.weight"):
        Trainer(recipe, run).train(make_state=broken)
    with Checkpoints(run.checkpoints) as checkpoints:
        assert checkpoints.steps() == []


def test_a_non_finite_gradient_is_named(recipe, tmp_path) -> None:
    recipe = replace(recipe, "optimizer.lr", 1e30)
    with pytest.raises(NonFiniteError, match=r"step \d+: the loss is .*parameter"):
        Trainer(recipe, RunDirectory(tmp_path)).train()


def test_profile_writes_a_trace(recipe, tmp_path) -> None:
    Trainer(recipe, RunDirectory(tmp_path)).train(profile=True, until=6)
    assert list(RunDirectory(tmp_path).profile.rglob("*.xplane.pb"))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("sequence_length", 4096, "longer than the model's RoPE table"),
        ("mesh.fsdp", 16, "needs 16 devices, but there are 8"),
        ("model.vocab_size", 300, "smaller than the tokenizer's"),
        ("batch_size", 12, "does not divide into 8 devices x 2 microbatches"),
        ("steps", 0, "steps is 0"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_compiles(recipe, tmp_path, path, value, message) -> None:
    recipe = replace(recipe, path, value)
    if path == "mesh.fsdp":
        recipe = replace(recipe, "batch_size", 32)
    with count_compiles() as counts, pytest.raises(ConfigError, match=message):
        Trainer(recipe, RunDirectory(tmp_path / "run"))
    assert counts.programs == 0
    assert not Path(tmp_path / "run").exists()


def test_nothing_to_resume(recipe, tmp_path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint to resume from"):
        Trainer(recipe, RunDirectory(tmp_path)).train(resume=True)
