"""The whole path from a recipe to a program, on one page. Training and planning both come through here.

recipe --build--> module on meta --simple_fsdp--> sharded module --capture--> StepGraph --lower--> Program
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import wholestep.kernels  # noqa: F401  so that kernels can be named in recipes and overrides
from wholestep.config.node import Dtype, Node
from wholestep.config.override import flatten
from wholestep.data import Text
from wholestep.errors import ConfigError, nearest
from wholestep.graph import fates, objective
from wholestep.graph.budget import Budget
from wholestep.graph.capture import capture_eval_step, capture_train_step
from wholestep.graph.costs import Rates
from wholestep.graph.initialize import Initializer, capture_initializers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep
from wholestep.graph.policies import POLICIES
from wholestep.graph.rules import by_rules
from wholestep.graph.schedule import Schedule
from wholestep.graph.signature import Field
from wholestep.graph.split import Cut
from wholestep.graph.step import StepGraph
from wholestep.models.decoder import Decoder
from wholestep.models.objectives import NextToken
from wholestep.parallel import Mesh, Policy, simple_fsdp, simulated_device_mesh
from wholestep.xla.chips import chip_of
from wholestep.xla.flags import compiler_options
from wholestep.xla.program import Program
from wholestep.xla.rates import rates_of
from wholestep.xla.split_program import SplitProgram


@dataclass(frozen=True, kw_only=True)
class Precision(Node):
    """Dtypes of what travels; parameters are fp32, and so is the optimizer's state unless it says otherwise.

    Attributes:
        gather: weights are gathered in this, and so the model computes in it.
        reduce: gradients are reduced in this.
    """

    gather: Dtype = "bfloat16"
    reduce: Dtype = "float32"

    def build(self) -> Policy:
        return Policy(gather_dtype=getattr(torch, self.gather), reduce_dtype=getattr(torch, self.reduce))


@dataclass(frozen=True, kw_only=True)
class Layers(Node):
    """How the model's layers run. The numbers are the same whatever is chosen.

    Attributes:
        execution: `unrolled` lays them out one after the other. `loop` makes those that are alike one loop forward and
            one backward, so that the program does not grow with their number. `split` makes their passes programs of
            their own, which those that are alike share.
        keep: what a layer's backward pass finds kept: the name of a policy (`wholestep.graph.policies`), or
            `budget=BYTES` (`budget=12GiB`): what costs the least time, with at most that much on a device for all
            layers and one microbatch.
        rules: exceptions to a policy, by operator and module (`wholestep.graph.rules`).
        gathered: weights as they were gathered for the forward pass are gathered `again` for the backward pass, or
            `kept`.
        pieces: of a split step: what is a program, the pass of a layer (`layers`) or of all together (`passes`).
        layers_per_piece: of a step split into layers: how many consecutive ones share a program.
    """

    execution: Literal["unrolled", "loop", "split"] = "unrolled"
    keep: str = "save_all"
    rules: tuple[str, ...] = ()
    gathered: Literal["again", "kept"] = "again"
    pieces: Literal["layers", "passes"] = "layers"
    layers_per_piece: int = 1

    def build(self, rates: Rates) -> objective.Layers:
        """For a device of these rates.

        Raises:
            ConfigError: `keep` or `rules` is none; the step is not split, but says how.
        """
        if (self.pieces, self.layers_per_piece) != ("layers", 1) and self.execution != "split":
            raise ConfigError("layers.pieces and layers.layers_per_piece are for layers.execution=split only")
        name, _, limit = self.keep.partition("=")
        if name == "budget":
            if self.rules:
                raise ConfigError("layers.rules are exceptions to a policy by name; a budget allows none")
            return self._keeping(Budget(_bytes(limit), rates))
        if self.keep not in POLICIES:
            known = [*POLICIES, "budget=BYTES"]
            raise ConfigError(f"layers.keep: no policy {self.keep!r}{nearest(self.keep, known)}; {', '.join(known)}")
        policy = POLICIES[self.keep]
        return self._keeping(by_rules(self.rules, policy) if self.rules else policy)

    def cut(self) -> Cut | None:
        """Where a split step is cut."""
        return Cut(self.pieces, self.layers_per_piece) if self.execution == "split" else None

    def _keeping(self, policy: fates.Policy | Budget) -> objective.Layers:
        return objective.Layers(Keep(policy, gathered=self.gathered == "kept"), looped=self.execution == "loop")


def _bytes(text: str) -> int:
    """`4096`, `512MiB` or `1.5GiB` in bytes."""
    units = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]iB)?", text.strip())
    if found is None:
        raise ConfigError(f"layers.keep: a budget is bytes, as in budget=12GiB or budget=800MiB, not {text!r}")
    return int(float(found[1]) * units[found[2] or ""])


@dataclass(frozen=True, kw_only=True)
class Checkpointing(Node):
    """When the state is saved, besides at the end: every so many steps; and how many of the last ones stay."""

    every: int = 500
    keep: int = 3


@dataclass(frozen=True, kw_only=True)
class Evaluation(Node):
    """How often the loss of the held-out documents is taken, besides at the end, and over how many batches at most."""

    every: int = 500
    batches: int = 32


@dataclass(frozen=True, kw_only=True)
class Recipe(Node):
    """Everything that decides what a training run does.

    Attributes:
        optimizer_state: the memory that the optimizer's slots live in.
        layers: how the model's layers run, and what their backward pass finds kept.
        flags: of the TPU compiler: names of sets (`wholestep flags` lists them) and `flag=value`, a later one wins. On
            a CPU they do nothing.
        sequence_length: tokens in a row.
        batch_size: rows in a step, over all devices and microbatches.
        microbatches: backward passes in a step; each takes an equal share of every device's rows.
        steps: optimizer steps in the run; the schedule ends there.
        seed: of the parameters' first values and of what a step draws. (The data has its own.)
    """

    model: Decoder.Config
    objective: NextToken = field(default_factory=NextToken)
    optimizer: AdamW = field(default_factory=AdamW)
    optimizer_state: Literal["device", "host"] = "device"
    schedule: Schedule = field(default_factory=Schedule)
    data: Text = field(default_factory=Text)
    precision: Precision = field(default_factory=Precision)
    mesh: Mesh = field(default_factory=Mesh)
    layers: Layers = field(default_factory=Layers)
    flags: tuple[str, ...] = ()
    checkpoints: Checkpointing = field(default_factory=Checkpointing)
    evaluation: Evaluation = field(default_factory=Evaluation)
    sequence_length: int
    batch_size: int
    microbatches: int = 1
    steps: int
    seed: int = 0

    def check(self) -> None:
        """See that the parts fit each other.

        Raises:
            ConfigError: what does not fit, and what would.
        """
        for path, value in flatten(self).items():
            if (path in _AT_LEAST_1 or path.startswith("model.")) and type(value) is int and value < 1:
                raise ConfigError(f"{path} is {value}; it is at least 1")
        for path, (holds, rule) in _RULES.items():
            value = flatten(self)[path]
            if not holds(value):
                raise ConfigError(f"{path} is {value}; {rule}")
        self.layers.build(Rates(1.0, 1.0, 0.0))  # raises for what is no policy, before anything starts
        limit = self.model.rotary.max_sequence_length
        if self.sequence_length > limit:
            raise ConfigError(
                f"sequence_length {self.sequence_length} is longer than the model's RoPE table, "
                f"model.rotary.max_sequence_length={limit}"
            )
        share = self.mesh.size * self.microbatches
        if self.batch_size % share:
            raise ConfigError(
                f"batch_size {self.batch_size} does not divide into {self.mesh.size} devices x {self.microbatches} "
                f"microbatches; a multiple of {share} does"
            )

    @property
    def batch(self) -> dict[str, Field]:
        """The fields of a global batch, int64 [batch_size, sequence_length] each."""
        shape = (self.batch_size, self.sequence_length)
        return {name: Field(shape, torch.int64) for name in ("tokens", "labels", "positions", "segment_ids")}


_AT_LEAST_1 = frozenset(
    {
        "sequence_length",
        "batch_size",
        "microbatches",
        "steps",
        "checkpoints.keep",
        "evaluation.batches",
        "layers.layers_per_piece",
    }
)
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "seed": (lambda seed: 0 <= seed < 2**32, "it is from 0 to 2**32 - 1"),
    "objective.z_loss": (lambda rate: 0 <= rate < math.inf, "it is a finite number, not negative"),
    "optimizer.lr": (lambda lr: 0 <= lr < math.inf, "it is a finite number, not negative"),
    "optimizer.betas": (lambda betas: all(0 <= beta < 1 for beta in betas), "each is at least 0 and less than 1"),
    "optimizer.eps": (lambda eps: 0 < eps < math.inf, "it is a finite number greater than 0"),
    "optimizer.weight_decay": (lambda decay: 0 <= decay < math.inf, "it is a finite number, not negative"),
    "schedule.warmup_steps": (lambda steps: steps >= 0, "it is not negative"),
}


def build_model(recipe: Recipe) -> nn.Module:
    """The recipe's model on meta: plain PyTorch, not sharded, nothing allocated."""
    with torch.device("meta"):
        return recipe.model.build()


def train_program(recipe: Recipe, devices: jax.sharding.Mesh) -> Program:
    """The training step of `recipe`, for a mesh of `recipe.mesh`'s axes (of devices that need not be here)."""
    with _sharded_model(recipe) as (model, mesh):
        step = capture_train_step(
            model,
            recipe.objective.build(),
            recipe.optimizer,
            recipe.batch,
            mesh,
            recipe.microbatches,
            recipe.layers.build(rates_of(devices)),
            slots_on_host=recipe.optimizer_state == "host",
        )
    return _program(step, recipe, devices)


def eval_program(recipe: Recipe, devices: jax.sharding.Mesh) -> Program:
    """The loss of a batch without gradients, on the training state's parameters. The batch is the training batch."""
    with _sharded_model(recipe) as (model, mesh):
        step = capture_eval_step(
            model, recipe.objective.build(), recipe.batch, mesh, recipe.layers.build(rates_of(devices))
        )
    return _program(step, recipe, devices)


def _program(step: StepGraph, recipe: Recipe, devices: jax.sharding.Mesh) -> Program:
    cut, options = recipe.layers.cut(), compiler_options(recipe.flags, chip_of(devices))
    return Program(step, devices, options) if cut is None else SplitProgram(step, devices, cut, options)


def initializers(recipe: Recipe) -> dict[str, Initializer]:
    """How each parameter and buffer of the recipe's model gets its first value."""
    return capture_initializers(build_model(recipe))


@contextmanager
def _sharded_model(recipe: Recipe) -> Iterator[tuple[nn.Module, DeviceMesh]]:
    recipe.check()
    with simulated_device_mesh(recipe.mesh) as mesh:
        yield simple_fsdp(build_model(recipe), mesh, recipe.precision.build()), mesh
