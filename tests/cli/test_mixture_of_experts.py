"""A mixture of experts, as a user meets it: trained, exported, loaded by transformers, and started from again."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from cli.command import as_words, run_cli
from tiny_run import OVERRIDES

from wholestep.checkpoint.huggingface import Reader


def test_train_then_export_then_transformers_then_init(capsys, tmp_path, corpus) -> None:
    run, folder = tmp_path / "run", tmp_path / "hf"
    # Of 5 experts of 44 rows, each of 8 devices has parts; the last has padding too.
    words = as_words({**OVERRIDES, "model.layers.*.feed_forward.num_experts": 5, "microbatches": 1, "model.layers": 1})
    train = ["train", "qwen3_moe_debug", "--data", str(corpus), "--json"]
    code, out, err = run_cli(capsys, *train, *words, "--steps", "3", "--out", str(run))
    assert code == 0, err
    loss = json.loads(out)["validation_loss"]

    code, out, err = run_cli(capsys, "export", str(run), "--to", str(folder), "--json")
    assert code == 0 and json.loads(out)["step"] == 3, err
    reader = Reader(folder)
    assert reader.shape("model.layers.0.mlp.experts.4.gate_proj.weight") == (44, 36)
    assert reader.shape("model.layers.0.mlp.experts.4.down_proj.weight") == (36, 44)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    with torch.no_grad():
        assert model(torch.arange(20)[None]).logits.isfinite().all()

    # Started from there, before any learning, the held-out loss is what the run ended with.
    kept = ("sequence_length", "batch_size", "data.validation_every")
    words = as_words({**{path: OVERRIDES[path] for path in kept}, "optimizer.lr": 0})
    again = ["--init", str(folder), "--steps", "1", "--out", str(tmp_path / "again")]
    code, out, err = run_cli(capsys, *train, *words, *again)
    assert code == 0, err
    assert json.loads(out)["validation_loss"] == pytest.approx(loss, rel=1e-5)
