"""What the backward pass of a layer finds kept, and what it computes again: the policies by name.

Gathered weights are never kept: the backward pass gathers them again. What enters a layer is always kept.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from wholestep.graph.fates import Fate, Policy
from wholestep.graph.intermediates import FREE

aten = torch.ops.aten

# Products with weights; kernels add theirs. Those of activations with each other, attention's scores above all, can be
# larger than all of these together and are cheap next to them.
WEIGHT_PRODUCTS: set[object] = {aten.mm.default, aten.addmm.default}


def save_all(node: fx.Node) -> Fate:
    """Everything that a gradient needs."""
    return Fate.SAVE


def recompute_all(node: fx.Node) -> Fate:
    """Layer inputs only."""
    return Fate.SAVE if node.op == "placeholder" else Fate.RECOMPUTE


def save_matmuls(node: fx.Node) -> Fate:
    """Layer inputs and the results of products with weights."""
    operator_node = node.all_input_nodes[0] if node.target is operator.getitem else node
    return Fate.SAVE if node.op == "placeholder" or operator_node.target in WEIGHT_PRODUCTS else Fate.RECOMPUTE


def save_attention(node: fx.Node) -> Fate:
    """Layer inputs and what the core of attention (a submodule called `inner`) returns."""
    return Fate.SAVE if node.op == "placeholder" or _leaves(node, "inner") else Fate.RECOMPUTE


def offload_layer_inputs(node: fx.Node) -> Fate:
    """Layer inputs, in host memory."""
    return Fate.OFFLOAD if node.op == "placeholder" else Fate.RECOMPUTE


def offload_matmuls(node: fx.Node) -> Fate:
    """Layer inputs and the results of products with weights, in host memory."""
    return Fate.OFFLOAD if save_matmuls(node) is Fate.SAVE else Fate.RECOMPUTE


POLICIES: dict[str, Policy] = {
    policy.__name__: policy
    for policy in (save_all, recompute_all, save_matmuls, save_attention, offload_layer_inputs, offload_matmuls)
}


def _leaves(node: fx.Node, submodule: str) -> bool:
    """Whether the forward pass reads the node's result, as it is or rearranged, outside of the submodule of that name
    which computes it; or another result of the same operator, without which that one would have to run again."""
    path = node.meta.get("module", "")
    if path.rpartition(".")[2] != submodule:
        return False
    alike = list(node.all_input_nodes[0].users) if node.target is operator.getitem else [node]
    readers = [user for each in alike for user in each.users if not user.meta.get("backward")]
    while readers:
        reader = readers.pop()
        if reader.target in FREE:
            readers += [user for user in reader.users if not user.meta.get("backward")]
        elif reader.meta.get("module") != path:
            return True
    return False
