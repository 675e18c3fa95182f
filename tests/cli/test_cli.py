"""The command line, as a user meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import transformers
from cli.command import as_words, run_cli

import wholestep
from wholestep.recipes.registry import entries


def test_recipes_lists_every_recipe(capsys) -> None:
    code, out, _ = run_cli(capsys, "recipes")
    assert code == 0
    for name in ("llama3_debug", "llama3_1b", "llama3_3b", "llama3_405b", "qwen3_235b_a22b", "muse_glimmer_30b"):
        assert name in out
    code, out, _ = run_cli(capsys, "recipes", "--json")
    assert code == 0 and json.loads(out).keys() == entries().keys()


def test_recipes_show_prints_the_tree(capsys) -> None:
    code, out, _ = run_cli(capsys, "recipes", "show", "llama3_405b")
    assert code == 0 and "layers.0-125" in out and "hidden_dim: 53248" in out
    code, out, _ = run_cli(capsys, "recipes", "show", "llama3_8b", "--json")
    assert code == 0 and len(json.loads(out)["model"]["layers"]) == 32


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "llama3_debugg"], "did you mean 'llama3_debug'"),
        (["recipes", "show", "llama_8b"], "'llama3_8b'"),
        (["train", "--set", "model.dmi=3"], "model.dim"),
        (["train", "--set", "modl.dim=3"], "model"),
        (["train", "--set", "model.dim=abc"], "model.dim: expected int, got 'abc'"),
        (["train", "--set", "optimizer.lr=fast"], "expected float"),
        (["train", "--set", "model.dim"], "path=value"),
        (["train", "--mesh", "fdsp=8"], "fsdp"),
        (["train", "--mesh", "fsdp=16"], "needs 16 devices, but there are 8"),
        (["train", "--set", "sequence_length=100000"], "RoPE table"),
        (["train", "--set", "model.vocab_size=1000"], "model.vocab_size=1000 is smaller than the tokenizer's"),
        (["train", "--data", "/nowhere/at/all"], "/nowhere/at/all"),
        (["train", "--steps", "many"], "not a valid integer"),
        (["train", "--resume"], "--resume needs --out"),
        (["train", "--resume", "--out", "nothing-here"], "holds no run"),
        (["train", "--init", "nothing-here"], "nothing-here"),
        (["train", "--set", "optimizer.lr=nan"], "optimizer.lr is nan; it is a finite number"),
        (["train", "--set", "optimizer.betas=0.9,1.0"], "less than 1"),
        (["train", "--set", "seed=-1"], "seed is -1"),
        (["train", "--set", "evaluation.batches=0"], "evaluation.batches is 0; it is at least 1"),
        (["train", "--set", "checkpoints.keep=0"], "checkpoints.keep is 0"),
        (["train", "--set", "model.dim=-4"], "model.dim is -4"),
        (["train", "--set", "model.layers.*.attention.num_kv_heads=0"], "num_kv_heads is 0"),
        (["train", "--set", "model.layers.*.attention.num_kv_heads=3"], "num_kv_heads must divide num_heads"),
        (["train", "--set", "model.layers.*.attention.head_dim=31"], "head_dim must be even"),
        (["trian"], "train"),
        (["export", "nothing-here", "--to", "somewhere"], "holds no run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_one_clear_line_and_exit_code_2(capsys, tmp_path, monkeypatch, words, message) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run_cli(capsys, *words)
    assert code == 2 and out == ""
    error = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1 and message in error[0]
    assert not (tmp_path / "runs").exists(), "something was left behind"
    code, out, _ = run_cli(capsys, *words, "--json")
    assert code == 2 and message in json.loads(out)["error"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, corpus) -> dict:
    """A run of the tiny recipe through the command line: its summary."""
    from tiny_run import OVERRIDES

    out = tmp_path_factory.mktemp("trained") / "run"
    words = as_words({**OVERRIDES, "model.tie_embeddings": "true", "optimizer.lr": 0.003})
    command = [sys.executable, "-m", "wholestep", "train", *words, "--data", str(corpus), "--out", str(out), "--json"]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"summary": json.loads(first.stdout), "out": out, "command": command, "log": first.stderr}


def test_train_leaves_everything_in_its_folder(trained) -> None:
    out, summary = trained["out"], trained["summary"]
    for name in ("recipe.json", "metrics.jsonl", "summary.json", "loss.png", "tensorboard", "checkpoints", "tokenizer"):
        assert (out / name).exists(), name
    assert summary["steps"] == 10 and summary["compiled_programs"] > 0
    for word in ("loss", "grad", "lr", "tok/s", "MFU", "GiB", "left"):
        assert word in trained["log"]


def test_a_second_process_compiles_nothing(trained) -> None:
    command = [word if word != str(trained["out"]) else str(trained["out"]) + "-again" for word in trained["command"]]
    again = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert again["compiled_programs"] == 0
    assert again["cached_programs"] == trained["summary"]["compiled_programs"] + trained["summary"]["cached_programs"]
    assert again["train_loss"] == trained["summary"]["train_loss"]


def test_train_refuses_a_folder_that_holds_a_run(capsys, trained) -> None:
    code, _, err = run_cli(capsys, "train", "--out", str(trained["out"]))
    assert code == 2 and "--resume continues it" in err


def test_export_then_transformers_then_init(capsys, trained, tmp_path) -> None:
    folder = tmp_path / "hf"
    code, out, _ = run_cli(capsys, "export", str(trained["out"]), "--to", str(folder), "--json")
    assert code == 0 and json.loads(out)["step"] == 10
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer("bad bad bad", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(ids).logits
    assert logits.shape[-1] == 330 and np.isfinite(logits.numpy()).all()
    assert model.config.bos_token_id == tokenizer.bos_token_id is not None

    # Started from there, before any learning, the held-out loss is what the run ended with.
    words = ["--set", "optimizer.lr=0", "--set", "batch_size=16", "--set", "sequence_length=24", "--steps", "1"]
    words += ["--set", "data.validation_every=10", "--set", "evaluation.batches=32"]
    data = next(trained["command"][i + 1] for i, word in enumerate(trained["command"]) if word == "--data")
    code, out, err = run_cli(
        capsys, "train", "--init", str(folder), "--data", data, "--out", str(tmp_path / "run"), "--json", *words
    )
    assert code == 0, err
    assert json.loads(out)["validation_loss"] == pytest.approx(trained["summary"]["validation_loss"], rel=1e-5)

    code, _, err = run_cli(capsys, "export", str(trained["out"]), "--to", str(folder))
    assert code == 2 and "not empty" in err


def test_a_refused_resume_changes_nothing(capsys, trained) -> None:
    out = trained["out"]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    code, _, err = run_cli(capsys, "train", "--resume", "--out", str(out), "--set", "model.dim=40")
    assert code == 2 and "does not fit" in err
    code, printed, _ = run_cli(capsys, "train", "--resume", "--out", str(out), "--json")
    assert code == 0 and json.loads(printed)["steps"] == 10
    changed = {p for p in out.rglob("*") if p.is_file() and before.get(p) != p.read_bytes()}
    assert all("tensorboard" in str(path) or "tokenizer" in str(path) or path.name == "recipe.json" for path in changed)


def test_a_folder_without_a_checkpoint_is_free_to_use(capsys, tmp_path, trained) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.json").write_bytes((trained["out"] / "recipe.json").read_bytes())
    (run / "checkpoints").mkdir()
    code, _, err = run_cli(capsys, "train", "--resume", "--out", str(run))
    assert code == 2 and "no checkpoint to resume from" in err
    code, _, err = run_cli(capsys, "export", str(run), "--to", str(tmp_path / "hf"))
    assert code == 2 and "no checkpoint to export" in err
    command = [word if word != str(trained["out"]) else str(run) for word in trained["command"]]
    assert subprocess.run(command, capture_output=True, check=True).returncode == 0


def test_a_path_that_cannot_be_made_is_one_line(capsys, tmp_path, trained) -> None:
    file = tmp_path / "file"
    file.write_text("")
    code, _, err = run_cli(capsys, "export", str(trained["out"]), "--to", str(file / "below"))
    assert code == 2 and str(file) in err and "Traceback" not in err


def test_help_without_arguments(capsys) -> None:
    code, out, _ = run_cli(capsys)
    assert code == 0 and "Usage:" in out
    code, out, _ = run_cli(capsys, "recipes", "--json", "show", "llama3_debug")
    assert code == 0 and json.loads(out)["node"] == "Recipe"


def test_sigterm_saves_and_exits_with_0_and_resume_continues(trained, tmp_path, corpus) -> None:
    out = tmp_path / "run"
    command = [word if word != str(trained["out"]) else str(out) for word in trained["command"]] + ["--steps", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        deadline = time.monotonic() + 120
        while (
            time.monotonic() < deadline
            and len((out / "metrics.jsonl").read_text().splitlines() if (out / "metrics.jsonl").exists() else []) < 12
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    summary = json.loads(output)
    assert summary["interrupted"] and summary["steps"] >= 10
    more = [sys.executable, "-m", "wholestep", "train", "--resume", "--out", str(out), "--json"]
    resumed = subprocess.run([*more, "--steps", str(summary["steps"] + 3)], capture_output=True, text=True, check=True)
    assert json.loads(resumed.stdout)["steps"] == summary["steps"] + 3


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "wholestep", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(wholestep.__version__)
