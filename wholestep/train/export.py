"""A trained run as a Hugging Face model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wholestep.checkpoint import huggingface
from wholestep.checkpoint.checkpoints import Checkpoints
from wholestep.checkpoint.huggingface import divided
from wholestep.data import load_pretrained
from wholestep.errors import CheckpointError
from wholestep.pipeline import build_model
from wholestep.train.description import Description
from wholestep.train.run_directory import RunDirectory


def export_run(directory: Path, target: Path) -> dict[str, Any]:
    """Write the parameters of the run's last checkpoint, fp32, with config and tokenizer, to a new folder `target`.
    One parameter at a time is in memory.

    Returns:
        `step`, of the checkpoint, and `directory`.

    Raises:
        CheckpointError: no run or no checkpoint in `directory`; `target` is there already.
        ConfigError: the model has something that the family's Hugging Face format cannot say.
    """
    run = RunDirectory(directory)
    description = Description.read(run.recipe)
    recipe, family = description.build(), description.family
    if not run.has_checkpoint() or not run.tokenizer.is_dir():
        raise CheckpointError(f"{directory} has no checkpoint to export")
    tokenizer = load_pretrained(str(run.tokenizer))
    config = {**family.hf_config(recipe.model), "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    parameters = dict(build_model(recipe).named_parameters())
    names = {name: family.hf_names(name, recipe.model) for name in parameters}
    plan = dict(part for name, parameter in parameters.items() for part in divided(names[name], parameter))
    with Checkpoints(run.checkpoints) as checkpoints:
        step = checkpoints.latest()
        if step is None:
            raise CheckpointError(f"{directory} has no checkpoint to export")
        tensors = checkpoints.tensors(step, [f"parameter/{name}" for name in names])
        parts = (part for own, (_, whole) in zip(names.values(), tensors, strict=True) for part in divided(own, whole))
        huggingface.write(target, plan, parts, config, beside=tokenizer.save_pretrained)
    return {"step": step, "directory": str(target)}
