"""Four ways to run the same training step, for `step_time.py` to time."""

from __future__ import annotations

from typing import Any, Protocol

import click
import jax
import llama_jax
import numpy as np
import torch
from jax.sharding import NamedSharding, PartitionSpec
from torch import Tensor, nn

from wholestep.pipeline import Recipe, initializers, train_program
from wholestep.xla.devices import device_mesh
from wholestep.xla.initialize import initialize_state

Arrays = dict[str, np.ndarray]


class Contender(Protocol):
    """Something that trains: `dispatch` starts a step, `finish` waits for all of it and gives the loss."""

    name: str
    mesh: str

    def dispatch(self, learning_rate: float, step: int) -> Any: ...
    def finish(self, pending: Any) -> float: ...
    def parameters(self) -> Arrays: ...


class Wholestep:
    name = "wholestep"

    def __init__(self, recipe: Recipe, batch: Arrays) -> None:
        devices = device_mesh(recipe.mesh)
        self.mesh, self.batch = str(recipe.mesh), batch
        self.program = train_program(recipe, devices)
        self.state = initialize_state(self.program.step, initializers(recipe), devices, recipe.seed)
        self.executable = self.program.executable

    def dispatch(self, learning_rate: float, step: int) -> Any:
        placed = self.program.place_batch(self.batch)
        self.state, metrics = self.program(self.state, placed, {"learning_rate": learning_rate, "step": step})
        return metrics

    def finish(self, pending: Any) -> float:
        jax.block_until_ready((self.state, pending))
        return float(pending["loss"])

    def parameters(self) -> Arrays:
        return self._named("parameter/")

    def buffers(self) -> Arrays:
        return self._named("buffer/")

    def _named(self, prefix: str) -> Arrays:
        found = (name for name in self.state if name.startswith(prefix))
        return {name.removeprefix(prefix): np.array(self.state[name]) for name in found}


class HandWrittenJax:
    name = "jax"

    def __init__(self, recipe: Recipe, batch: Arrays, parameters: Arrays, buffers: Arrays) -> None:
        mesh = jax.sharding.Mesh(device_mesh(recipe.mesh).devices.ravel(), ("fsdp",))
        self.mesh, self.config = str(recipe.mesh), recipe.model
        self.batch, self.rows = batch, NamedSharding(mesh, PartitionSpec("fsdp"))
        self.state = llama_jax.init_state(recipe.model, parameters, mesh)
        step = llama_jax.train_step(recipe.model, recipe.optimizer, buffers["rotary.inverse_frequencies"], mesh)
        self.executable = step.lower(self.state, self._placed(), np.float32(0)).compile()

    def _placed(self) -> dict[str, jax.Array]:
        return {name: jax.device_put(field.astype(np.int32), self.rows) for name, field in self.batch.items()}

    def dispatch(self, learning_rate: float, step: int) -> Any:
        self.state, metrics = self.executable(self.state, self._placed(), np.float32(learning_rate))
        return metrics

    def finish(self, pending: Any) -> float:
        jax.block_until_ready((self.state, pending))
        return float(pending["loss"])

    def parameters(self) -> Arrays:
        return llama_jax.parameters_by_name(self.config, self.state)


class PyTorch:
    """Eager, or with forward, loss and backward through `torch.compile`'s default backend; AdamW is torch's own."""

    mesh = "none"

    def __init__(self, recipe: Recipe, batch: Arrays, parameters: Arrays, buffers: Arrays, compiled: bool) -> None:
        self.name = "torch.compile" if compiled else "eager"
        self.model, self.optimizer = recipe.model.build(), recipe.optimizer
        tensors = {name: torch.from_numpy(array.copy()) for name, array in (parameters | buffers).items()}
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            with torch.no_grad():
                tensor.copy_(tensors[name])
        self.batch = {name: torch.from_numpy(field) for name, field in batch.items()}
        self.adamw = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.optimizer.lr,
            betas=self.optimizer.betas,
            eps=self.optimizer.eps,
            weight_decay=self.optimizer.weight_decay,
        )
        objective = recipe.objective.build()

        def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
            loss_sum, weight, _ = objective(model, batch)
            return loss_sum / weight

        self.loss = torch.compile(loss) if compiled else loss

    def dispatch(self, learning_rate: float, step: int) -> Any:
        self.adamw.param_groups[0]["lr"] = learning_rate
        self.adamw.zero_grad()
        loss = self.loss(self.model, self.batch)
        loss.backward()
        if self.optimizer.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.optimizer.clip_norm)
        self.adamw.step()
        return loss.detach()

    def finish(self, pending: Any) -> float:
        return float(pending)

    def parameters(self) -> Arrays:
        return {name: parameter.detach().numpy() for name, parameter in self.model.named_parameters()}


def packed_batch(recipe: Recipe) -> Arrays:
    """Random tokens in documents of about 64, as `recipe.batch` has them."""
    rng = np.random.default_rng(0)
    shape = (recipe.batch_size, recipe.sequence_length)
    tokens, starts = rng.integers(0, recipe.model.vocab_size, shape), rng.random(shape) < 1 / 64
    starts[:, 0] = True
    index = np.arange(shape[1])
    labels = np.where(np.roll(starts, -1, axis=1), -100, np.roll(tokens, -1, axis=1))
    positions = index - np.maximum.accumulate(np.where(starts, index, 0), axis=1)
    return {"tokens": tokens, "labels": labels, "positions": positions, "segment_ids": np.cumsum(starts, axis=1)}


def check_comparable(recipe: Recipe) -> None:
    """See that the other contenders compute what the recipe says: fp32, one backward pass, no padded shards."""
    if recipe.precision.gather != "float32" or recipe.microbatches != 1:
        raise click.ClickException(
            "the contenders run in fp32 and in one pass: precision.gather=float32 microbatches=1"
        )
    if recipe.mesh.replicate != 1:
        raise click.ClickException(f"hand-written JAX shards over fsdp alone; mesh {recipe.mesh} has replicas")
    layer = recipe.model.layers[0]
    sizes = {recipe.model.dim, recipe.model.vocab_size, layer.feed_forward.hidden_dim}
    sizes |= {heads * layer.attention.head_dim for heads in (layer.attention.num_heads, layer.attention.num_kv_heads)}
    if any(size % recipe.mesh.fsdp for size in sizes):
        raise click.ClickException(
            f"hand-written JAX does not pad: fsdp={recipe.mesh.fsdp} must divide {sorted(sizes)}"
        )
