"""What the families' recipes share."""

from __future__ import annotations

import dataclasses

from wholestep.config.override import apply
from wholestep.data import Text
from wholestep.graph.optimizer import AdamW
from wholestep.graph.schedule import Schedule
from wholestep.models.decoder import Decoder
from wholestep.parallel import Mesh
from wholestep.pipeline import Checkpointing, Evaluation, Layers, Precision, Recipe

DEBUG_VOCABULARY = 2048


def debug(model: Decoder.Config) -> Recipe:
    """A small model, its vocabulary `DEBUG_VOCABULARY`, on text that is found anywhere: minutes on two CPU cores."""
    return Recipe(
        model=model,
        optimizer=AdamW(lr=2e-3),
        schedule=Schedule(warmup_steps=20),
        data=Text(tokenizer_vocab_size=DEBUG_VOCABULARY),
        precision=Precision(gather="float32"),
        mesh=Mesh(fsdp=8),
        layers=Layers(gathered="kept"),
        checkpoints=Checkpointing(every=100),
        evaluation=Evaluation(every=100, batches=16),
        sequence_length=256,
        batch_size=8,
        steps=300,
    )


# What costs much to compute again and is small, beside what the core of attention returns.
SAVE_HEADS = tuple(f"mm@*.{projection}=save" for projection in ("q_proj", "k_proj", "v_proj"))


def tuned(
    recipe: Recipe,
    *,
    devices: int,
    rows: int,
    replicas: int = 1,
    keep: str,
    rules: tuple[str, ...] = (),
    flags: tuple[str, ...],
) -> Recipe:
    """A published size as it runs on one topology.

    Args:
        recipe: of `published`.
        devices: of all slices.
        rows: of the batch on each device.
        replicas: copies of the parameters, one a slice.
        keep: what a layer's backward pass finds kept.
        rules: exceptions to that.
        flags: of the compiler.
    """
    return dataclasses.replace(
        recipe,
        mesh=Mesh(replicate=replicas, fsdp=devices // replicas),
        batch_size=devices * rows,
        layers=dataclasses.replace(recipe.layers, keep=keep, rules=rules),
        flags=flags,
    )


SPLASH = "model.layers.*.attention.inner=splash"


def published(
    model: Decoder.Config,
    lr: float,
    devices: int,
    sequence_length: int = 8192,
    rows_per_device: int = 1,
    kernels: tuple[str, ...] = (SPLASH,),
) -> Recipe:
    """A published size: layers as a loop that keeps their inputs; the kernels that win there (docs/kernels.md)."""
    recipe = Recipe(
        model=model,
        optimizer=AdamW(lr=lr),
        schedule=Schedule(warmup_steps=2000),
        mesh=Mesh(fsdp=devices),
        layers=Layers(execution="loop", keep="recompute_all"),
        sequence_length=sequence_length,
        batch_size=devices * rows_per_device,
        steps=100_000,
    )
    return apply(recipe, kernels)
