"""What can be tried of a recipe on a topology: the mesh, the batch, what layers keep, kernels, compiler flags."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from wholestep.config.override import values_at
from wholestep.errors import ConfigError
from wholestep.graph.policies import POLICIES
from wholestep.kernels import KERNELS
from wholestep.pipeline import Recipe
from wholestep.plan.job import Job
from wholestep.xla.chips import Chip
from wholestep.xla.flag_sets import SETS
from wholestep.xla.flags import compiler_options
from wholestep.xla.topologies import topology_chip

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
MICROBATCHES = (1, 2, 4)
SLICE_PARTS = (1, 2, 4)
HOST_SET = "host_offload"

Choice = tuple[str, ...]
"""Overrides that are set together; none is the recipe's own."""


@dataclass(frozen=True)
class Dimension:
    """Something that is searched, and what it may be; the first choice is the recipe's own.

    Attributes:
        group: dimensions of one group are varied together, because what one takes is what the other may have.
    """

    group: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Candidate:
    """A choice for every dimension, in the space's order."""

    choices: tuple[Choice, ...]

    @property
    def overrides(self) -> tuple[str, ...]:
        """What differs from the recipe."""
        return tuple(itertools.chain.from_iterable(self.choices))


@dataclass(frozen=True)
class Space:
    """Attributes:
    job: the recipe fitted to the topology, with what the user set: neither is searched.
    dimensions: what is.
    """

    job: Job
    dimensions: tuple[Dimension, ...]

    @classmethod
    def of(cls, job: Job) -> Space:
        """The space of a job. What its overrides and flags say of the mesh, `batch_size`, `microbatches`,
        `layers.keep`, kernels or flags is fixed.

        Raises:
            ConfigError: a setting is wrong, or the step is not one program.
        """
        recipe = job.build()
        job.mesh(recipe)
        recipe.check()
        chip, fixed = topology_chip(job.topology), {override.partition("=")[0] for override in job.overrides}
        flags = (f"flags={','.join(recipe.flags)}",) if job.flags else ()
        fitted = dataclasses.replace(job, overrides=(*job.fitting(), *job.overrides, *flags), flags=())
        found = (
            *([] if any(path.startswith("mesh") for path in fixed) else [_mesh(recipe, job)]),
            *([] if {"batch_size", "microbatches"} <= fixed else [_batch(recipe, fixed)]),
            *([] if "layers.keep" in fixed or recipe.layers.execution != "loop" else [_keep(recipe)]),
            *_kernels(recipe, fixed),
            *([] if job.flags or "flags" in fixed else [_flags(recipe, chip)]),
        )
        return cls(fitted, tuple(dimension for dimension in found if len(dimension.choices) > 1))

    @property
    def base(self) -> Candidate:
        """The recipe's own choices."""
        return Candidate(tuple(dimension.choices[0] for dimension in self.dimensions))

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(dimension.group for dimension in self.dimensions))

    @property
    def size(self) -> int:
        """Candidates in all."""
        return math.prod(len(dimension.choices) for dimension in self.dimensions)

    def job_of(self, candidate: Candidate) -> Job:
        return self.job.with_overrides(*candidate.overrides)

    def settings(self, candidate: Candidate) -> tuple[str, ...]:
        """All that has to be set to train the candidate on the topology, each path once."""
        last = {override.partition("=")[0]: override for override in self.job_of(candidate).overrides}
        return tuple(last.values())

    def neighbours(self, candidate: Candidate, group: str) -> Iterator[Candidate]:
        """Those that differ in this group's choices only. Flags for traffic with the host are for candidates that have
        some."""
        ways = [
            dimension.choices if dimension.group == group else (own,)
            for dimension, own in zip(self.dimensions, candidate.choices, strict=True)
        ]
        for choices in itertools.product(*ways):
            other = Candidate(choices)
            useless = group == "flags" and any(HOST_SET in it for it in other.overrides) and not self._offloads(other)
            if other != candidate and not useless:
                yield other

    def alike(self, one: Candidate, other: Candidate, but: Collection[str]) -> bool:
        """Whether they differ in these groups' choices at most."""
        pairs = zip(self.dimensions, one.choices, other.choices, strict=True)
        return all(a == b for dimension, a, b in pairs if dimension.group not in but)

    def _offloads(self, candidate: Candidate) -> bool:
        return self.job_of(candidate).build().layers.keep.startswith("offload_")


def _mesh(recipe: Recipe, job: Job) -> Dimension:
    """Sharded over a slice, or over a half or a quarter of one: gathers over slices would cross the data center."""
    in_slice = job.devices // job.slices
    sizes = [in_slice // part for part in SLICE_PARTS if in_slice % part == 0]
    others = [(f"mesh.replicate={job.devices // size}", f"mesh.fsdp={size}") for size in sizes]
    own = f"mesh.fsdp={recipe.mesh.fsdp}"
    return Dimension("mesh", ((), *(each for each in others if own not in each)))


def _batch(recipe: Recipe, fixed: set[str]) -> Dimension:
    """Rows of a device and microbatches that divide them."""
    own = recipe.batch_size // recipe.mesh.size
    rows = [own] if "batch_size" in fixed else [own, *(each for each in (*ROWS, 2 * own) if each != own)]
    counts = [recipe.microbatches] if "microbatches" in fixed else [recipe.microbatches, *MICROBATCHES]
    choices: list[Choice] = []
    for each, count in itertools.product(dict.fromkeys(rows), dict.fromkeys(counts)):
        if each % count == 0:
            size = () if each == own else (f"batch_size={each * recipe.mesh.size}",)
            choices.append((*size, *(() if count == recipe.microbatches else (f"microbatches={count}",))))
    return Dimension("memory", tuple(choices))


def _keep(recipe: Recipe) -> Dimension:
    """Policies by name. Only for loops of layers: laid out, the compiler decides what it computes again."""
    others = [(f"layers.keep={name}",) for name in POLICIES if name != recipe.layers.keep]
    return Dimension("memory", ((), *others))


def _kernels(recipe: Recipe, fixed: set[str]) -> Iterator[Dimension]:
    """For each place where all nodes are of one type that has a kernel: the plain one and its kernels."""
    for path in dict.fromkeys(kernel.path for kernel in KERNELS):
        if any(each.startswith(path) for each in fixed):
            continue
        here = [kernel for kernel in KERNELS if kernel.path == path]
        nodes = {node.node_name for node in values_at(recipe, path)}
        names = [here[0].replaces.node_name, *(kernel.name for kernel in here)]
        if len(nodes) == 1 and nodes <= set(names):
            yield Dimension(path, ((), *((f"{path}={name}",) for name in names if name not in nodes)))


def _flags(recipe: Recipe, chip: Chip) -> Dimension:
    """None, and a handful of combinations on top of the recipe's own: what wins most, larger tiles for products and
    transfers beside them, with each way to run all-gathers beside computation; and what is made for traffic with the
    host."""
    most = ("latency_hiding", "async_all_gather", *_for_chip("vmem_", chip)[:1])
    beside = ("all_gather_fusion",), tuple(_for_chip("sparsecore_offload", chip)[:1])
    combinations = (most, *((*most, *names) for names in beside), (HOST_SET,))
    useful = (tuple(name for name in names if chip.name not in SETS[name].anyway) for names in combinations)
    choices: list[Choice] = [(), ("flags=",)] if recipe.flags else [()]
    for names in dict.fromkeys(useful):
        flags = (*recipe.flags, *(name for name in names if name not in recipe.flags))
        if flags != recipe.flags and _allowed(flags, chip):
            choices.append((f"flags={','.join(flags)}",))
    return Dimension("flags", tuple(choices))


def _for_chip(start: str, chip: Chip) -> Sequence[str]:
    """Sets of this beginning that are for the chip, the one of most effect first."""
    return [name for name, flag_set in SETS.items() if name.startswith(start) and chip.name in flag_set.chips]


def _allowed(flags: Sequence[str], chip: Chip) -> bool:
    try:
        compiler_options(flags, chip)
    except ConfigError:
        return False
    return True
