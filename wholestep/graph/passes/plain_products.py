"""Let matrix products write rows, not attention heads.

Heads are split off the results of projections, and kernels of attention want them before the places: `[B, N, L, H]`.
The TPU compiler would make the product itself write that, a head's 128 channels at a time, and even in fp32 where the
next thing is a rotation in fp32. Such products ran at 39% to 48% of the matrix unit's rate by its own cycles,
those that write rows at 87% and more (Llama 3 70B on TPU7x); turning the result around apart costs far less than that.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import fx

from wholestep.graph.call import fence_off
from wholestep.graph.step import StepGraph, copy_graph, graphs

aten = torch.ops.aten

_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})


def fence_products(step: StepGraph) -> StepGraph:
    """The result of every product whose columns are split afterwards is fenced off from what follows."""
    module = copy_graph(step.module)
    for graph_module in graphs(module):
        for node in list(graph_module.graph.nodes):
            if node.target is aten.mm.default and _columns_are_split(node):
                (result,) = fence_off([node], node.next)
                node.replace_all_uses_with(result, delete_user_cb=lambda user, own=result.args[0]: user is not own)
        graph_module.recompile()
    return dataclasses.replace(step, module=module)


def _columns_are_split(product: fx.Node) -> bool:
    width = product.meta["val"].shape[-1]
    views = [user for user in product.users if user.target in _VIEWS]
    while views:
        view = views.pop()
        if view.meta["val"].shape[-1] < width:
            return True
        views += [user for user in view.users if user.target in _VIEWS]
    return False
