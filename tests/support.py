"""What several tests need: a tiny model, batches, the eager reference, and the one place where tolerances are set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from wholestep.config.override import replace
from wholestep.graph.capture import capture_train_step
from wholestep.graph.initialize import capture_initializers
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.signature import Field
from wholestep.graph.split import Cut
from wholestep.models.decoder import Decoder
from wholestep.models.llama3 import llama3_debug_config
from wholestep.models.objectives import NextToken
from wholestep.parallel import Mesh, Policy, simple_fsdp, simulated_device_mesh
from wholestep.xla.devices import device_mesh
from wholestep.xla.initialize import initialize_state
from wholestep.xla.program import Program, State
from wholestep.xla.split_program import SplitProgram

# Relative error of a whole tensor, ||a - b|| / ||b||, by the narrowest dtype that takes part.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

OBJECTIVE = NextToken().build()


def tiny_config(tied: bool = False) -> Decoder.Config:
    """Two layers whose dimensions no mesh of the tests divides."""
    config = llama3_debug_config()
    for path, value in {
        "layers": 2,
        "vocab_size": 53,
        "dim": 36,
        "layers.*.attention.num_heads": 6,
        "layers.*.attention.num_kv_heads": 2,
        "layers.*.attention.head_dim": 10,
        "layers.*.feed_forward.hidden_dim": 46,
        "tie_embeddings": tied,
    }.items():
        config = replace(config, path, value)
    return config


def random_batch(rows: int, length: int, vocab_size: int, seed: int) -> dict[str, np.ndarray]:
    """Packed rows, with labels masked so that rows (and so devices) differ in how many they have."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocab_size, (rows, length))
    labels = rng.integers(0, vocab_size, (rows, length))
    labels[rng.random((rows, length)) < rng.random((rows, 1))] = -100
    labels[0] = -100
    labels[-1, -1] = 0
    starts = rng.random((rows, length)) < 0.15
    starts[:, 0] = True
    segment_ids = np.cumsum(starts, axis=1)
    index = np.arange(length)
    positions = index - np.maximum.accumulate(np.where(starts, index, 0), axis=1)
    return {"tokens": tokens, "labels": labels, "positions": positions, "segment_ids": segment_ids}


def as_tensors(batch: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(field)).long() for name, field in batch.items()}


def fields(rows: int, length: int) -> dict[str, Field]:
    return {name: Field((rows, length), torch.int64) for name in ("tokens", "labels", "positions", "segment_ids")}


@dataclass(frozen=True, kw_only=True)
class KeepGradients(AdamW):
    """An optimizer that changes nothing and stores each gradient, to look at it."""

    clip_norm: float | None = None
    slots = {"grad": torch.float32}  # noqa: RUF012

    def update_slots(self, grad, slots) -> list[Tensor]:
        return [grad]

    def update_parameter(self, parameter, slots, lr, step) -> Tensor:
        return parameter


@dataclass(frozen=True)
class Captured:
    """A compiled train step and the state it starts from, ready to run."""

    program: Program
    state: State


def captured(
    module: nn.Module,
    optimizer: AdamW,
    batch: Mapping[str, Field],
    mesh: Mesh,
    policy: Policy | None = None,
    microbatches: int = 1,
    seed: int = 0,
    layers: Layers | None = None,
    cut: Cut | None = None,
    slots_on_host: bool = False,
) -> Captured:
    """`module` (on meta) through the pipeline, on the CPU's virtual devices.

    Matrices are scaled to about unit gain (0.02 * 8 = 1 / sqrt(36)). At the initialization that suits wide models, a
    narrow one has gradients next to nothing, whose rounding AdamW blows up: there eager fp32 itself is 1e-4 away from
    eager fp64 after one step.
    """
    initializers = capture_initializers(module)
    with simulated_device_mesh(mesh) as simulated:
        simple_fsdp(module, simulated, policy)
        step = capture_train_step(module, OBJECTIVE, optimizer, batch, simulated, microbatches, layers, slots_on_host)
    devices = device_mesh(mesh)
    state = initialize_state(step, initializers, devices, seed)
    for value in step.state():
        if value.kind == "parameter" and len(value.unstacked()[0].shape) > 1:
            state[value.name] = state[value.name] * 8
    return Captured(SplitProgram(step, devices, cut) if cut else Program(step, devices), state)


def unpadded(state: State, prefix: str, reference: nn.Module) -> dict[str, np.ndarray]:
    """The tensors under `prefix` in the shapes of `reference`'s parameters. What is cut off must be zero."""
    tensors = {}
    for name, parameter in reference.named_parameters():
        array = np.asarray(state[f"{prefix}/{name}"], np.float32)
        rows = parameter.shape[0] if parameter.dim() else 1
        assert not array[rows:].any(), f"{prefix}/{name} has something in its padding"
        tensors[name] = array[:rows].reshape(parameter.shape)
    return tensors


def load(reference: nn.Module, state: State) -> None:
    """Set `reference`'s parameters and buffers to the state's."""
    with torch.no_grad():
        for name, array in unpadded(state, "parameter", reference).items():
            reference.get_parameter(name).copy_(torch.from_numpy(array.copy()))
        for name, buffer in reference.named_buffers():
            buffer.copy_(torch.from_numpy(np.array(state[f"buffer/{name}"])))


def eager_loss(module: nn.Module, batch: Mapping[str, np.ndarray]) -> Tensor:
    """Plain single-process PyTorch."""
    loss_sum, weight, _ = OBJECTIVE(module, as_tensors(batch))
    return loss_sum / weight


def relative_error(value: np.ndarray, reference: np.ndarray) -> float:
    """||value - reference|| / ||reference||; the numerator alone where the reference is zero."""
    wide = np.complex128 if np.iscomplexobj(reference) else np.float64
    scale = float(np.linalg.norm(reference.astype(wide)))
    return float(np.linalg.norm(value.astype(wide) - reference.astype(wide))) / (scale or 1.0)
