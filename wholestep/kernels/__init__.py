"""Kernels: config nodes that replace a block of a model by one that runs faster or in less memory.

Each file holds a kernel's JAX function, the operator that it is in PyTorch, and the node that turns it on, by name:
`--set model.layers.*.attention.inner=splash`. Importing this package makes all names known.
"""

from __future__ import annotations

from dataclasses import dataclass

from wholestep.config.node import Node
from wholestep.config.override import values_at
from wholestep.kernels.fused_cross_entropy import FusedCrossEntropy
from wholestep.kernels.grouped_experts import GroupedExperts
from wholestep.kernels.route_score import FusedRouteScore
from wholestep.kernels.splash_attention import SplashAttention
from wholestep.models.layers.attention import DotProductAttention
from wholestep.models.layers.head import WholeLogits
from wholestep.models.layers.mixture import EveryExpert, WeightedSwiGLU


@dataclass(frozen=True)
class Kernel:
    """A row of the table.

    Attributes:
        node: what turns it on.
        replaces: the plain path that it is compared with.
        path: where in a recipe.
        summary: one line.
    """

    node: type[Node]
    replaces: type[Node]
    path: str
    summary: str

    @property
    def name(self) -> str:
        """How `--set` calls it."""
        assert self.node.node_name is not None, f"{self.node} has no name"
        return self.node.node_name


KERNELS = (
    Kernel(
        SplashAttention.Config,
        DotProductAttention.Config,
        "model.layers.*.attention.inner",
        "attention by blocks: no scores in memory, blocks that no query sees skipped",
    ),
    Kernel(
        FusedCrossEntropy.Config,
        WholeLogits.Config,
        "model.lm_head.inner",
        "output head and cross entropy by tiles of the vocabulary: no logits in memory",
    ),
    Kernel(
        GroupedExperts.Kernel,
        EveryExpert.Config,
        "model.layers.*.feed_forward.inner",
        "experts by grouped matmuls on TPU: each row by its expert's weights, gate and up in one pass",
    ),
    Kernel(
        GroupedExperts.Plain,
        EveryExpert.Config,
        "model.layers.*.feed_forward.inner",
        "experts by JAX's ragged products, on any platform",
    ),
    Kernel(
        FusedRouteScore.Config,
        WeightedSwiGLU.Config,
        "model.layers.*.feed_forward.route_score",
        "experts' SwiGLUs weighted by the router's scores: no fp32 copies for the gradient",
    ),
)


def turned_on(recipe: Node) -> tuple[str, ...]:
    """The kernels that are on in all layers of a recipe, as what `--set` would be given."""
    found = []
    for path in dict.fromkeys(kernel.path for kernel in KERNELS):
        nodes = {type(node) for node in values_at(recipe, path)}
        found += [f"{path}={kernel.name}" for kernel in KERNELS if kernel.path == path and nodes == {kernel.node}]
    return tuple(found)


__all__ = ["KERNELS", "Kernel", "turned_on"]
