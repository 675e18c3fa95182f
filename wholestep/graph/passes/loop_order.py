"""Let what the backward pass computes before a loop end before the loop.

A gradient of what comes after the layers, that of the head, needs the gradient of the logits, the largest array of most
steps. Nothing but the optimizer waits for it, so that XLA computes it after the loop over the layers, beside which the
gradient of the logits lives on; or computes that a second time. What is left of it here, reduced over the mesh, is
small.
"""

from __future__ import annotations

import dataclasses
import operator

import torch
from torch import fx

from wholestep.graph.call import fence_off
from wholestep.graph.scan import loop
from wholestep.graph.step import StepGraph, ancestors, copy_graph, graphs


def finish_before_loops(step: StepGraph) -> StepGraph:
    """Each loop of the backward pass is fenced off from what stands before it there and is not for it."""
    module = copy_graph(step.module)
    for graph_module in graphs(module):
        for node in graph_module.graph.find_nodes(op="call_function", target=loop):
            if _is_backward(node):
                _finish_before(node)
        graph_module.recompile()
    return dataclasses.replace(step, module=module)


def _is_backward(node: fx.Node) -> bool:
    return bool(node.meta.get("backward"))


def _finish_before(backward_loop: fx.Node) -> None:
    order = list(backward_loop.graph.nodes)
    before = set(order[: order.index(backward_loop)])
    apart = before - ancestors(backward_loop)
    others = [
        node
        for node in order
        if node in apart and _is_backward(node) and _is_tensor(node) and not before & node.users.keys()
        # Of what is fenced off with it already, the loop needs the fence.
        if not (node.target is operator.getitem and node.args[0] not in apart)
    ]
    if not others:
        return
    carried = backward_loop.args[1][0]
    start, *results = fence_off([carried, *others], backward_loop)
    backward_loop.replace_input_with(carried, start)
    for node, result in zip(others, results, strict=True):
        node.replace_all_uses_with(result, delete_user_cb=lambda user, own=result.args[0]: user is not own)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
