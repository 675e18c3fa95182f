"""Remove what no output depends on."""

from __future__ import annotations

import dataclasses

from torch import fx

from wholestep.graph.step import StepGraph, copy_graph, graphs


def remove_dead_nodes(step: StepGraph) -> StepGraph:
    """Every node that no output needs goes, collectives included: nothing in a step graph has a side effect."""
    module = copy_graph(step.module)
    for graph_module in graphs(module):
        drop_dead_nodes(graph_module)
    return dataclasses.replace(step, module=module)


def drop_dead_nodes(graph_module: fx.GraphModule) -> None:
    """The same for one graph, in place."""
    graph_module.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    graph_module.recompile()
