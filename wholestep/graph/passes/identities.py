"""Remove nodes that return what they are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import fx

from wholestep.graph.collectives import axis_of
from wholestep.graph.step import StepGraph, copy_graph, graphs

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

ALWAYS = (
    aten.alias.default,
    aten.clone.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    c10d.wait_tensor.default,
)
"""Operators that return what they are given, always."""

_IF_UNCHANGED = (aten._to_copy.default, aten.expand.default, aten.view.default, aten.slice.Tensor)
_COLLECTIVES = {
    c10d.all_gather_into_tensor.default: 2,
    c10d.reduce_scatter_tensor.default: 3,
    c10d.all_reduce.default: 2,
}  # operator -> the argument that is its group


def remove_identities(step: StepGraph) -> StepGraph:
    """Aliases, copies, views to the same shape, waits, and collectives over an axis of one device go. (In a graph of
    values nothing can be written in place, so a copy is its source.)"""
    module = copy_graph(step.module)
    for graph_module in graphs(module):
        drop_identities(graph_module, step.axes)
    return dataclasses.replace(step, module=module)


def drop_identities(graph_module: fx.GraphModule, axes: Mapping[str, int]) -> None:
    """The same for one graph, in place."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_function" and _is_identity(node, axes):
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)
    graph_module.recompile()


def _is_identity(node: fx.Node, axes: Mapping[str, int]) -> bool:
    if node.target in ALWAYS:
        return True
    if node.target in _COLLECTIVES:
        return axes[axis_of(node.args[_COLLECTIVES[node.target]])] == 1
    if node.target in _IF_UNCHANGED:
        before, after = node.args[0].meta["val"], node.meta["val"]
        return before.shape == after.shape and before.dtype == after.dtype
    return False
