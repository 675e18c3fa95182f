"""Llama 3: a small one to run anywhere, and the published family."""

from __future__ import annotations

from wholestep.data import Text
from wholestep.graph.optimizer import AdamW
from wholestep.graph.schedule import Schedule
from wholestep.models import llama3
from wholestep.models.decoder import Decoder
from wholestep.parallel import Mesh
from wholestep.pipeline import Checkpointing, Evaluation, Layers, Precision, Recipe
from wholestep.recipes.registry import recipe

_VOCABULARY = 2048


@recipe(llama3)
def llama3_debug() -> Recipe:
    """4M parameters on the Python standard library's sources: minutes on two CPU cores."""
    return Recipe(
        model=llama3.llama3_debug_config(vocab_size=_VOCABULARY),
        optimizer=AdamW(lr=2e-3),
        schedule=Schedule(warmup_steps=20),
        data=Text(tokenizer_vocab_size=_VOCABULARY),
        precision=Precision(gather="float32"),
        mesh=Mesh(fsdp=8),
        layers=Layers(gathered="kept"),
        checkpoints=Checkpointing(every=100),
        evaluation=Evaluation(every=100, batches=16),
        sequence_length=256,
        batch_size=8,
        steps=300,
    )


def _published(model: Decoder.Config, lr: float, devices: int) -> Recipe:
    """What the published sizes share: sequence 8,192, one row a device, layers as a loop that keeps their inputs."""
    return Recipe(
        model=model,
        optimizer=AdamW(lr=lr),
        schedule=Schedule(warmup_steps=2000),
        mesh=Mesh(fsdp=devices),
        layers=Layers(execution="loop", keep="recompute_all"),
        sequence_length=8192,
        batch_size=devices,
        steps=100_000,
    )


@recipe(llama3)
def llama3_1b() -> Recipe:
    """Llama 3.2 1B: 16 layers, tied embeddings, RoPE scaled 32x."""
    return _published(llama3.llama3_1b_config(), lr=3e-4, devices=8)


@recipe(llama3)
def llama3_3b() -> Recipe:
    """Llama 3.2 3B: 28 layers, tied embeddings, RoPE scaled 32x."""
    return _published(llama3.llama3_3b_config(), lr=3e-4, devices=8)


@recipe(llama3)
def llama3_8b() -> Recipe:
    """Llama 3.1 8B: 32 layers, RoPE scaled 8x."""
    return _published(llama3.llama3_8b_config(), lr=3e-4, devices=8)


@recipe(llama3)
def llama3_70b() -> Recipe:
    """Llama 3.1 70B: 80 layers, RoPE scaled 8x."""
    return _published(llama3.llama3_70b_config(), lr=1.5e-4, devices=128)


@recipe(llama3)
def llama3_405b() -> Recipe:
    """Llama 3.1 405B: 126 layers, RoPE scaled 8x."""
    return _published(llama3.llama3_405b_config(), lr=8e-5, devices=256)
