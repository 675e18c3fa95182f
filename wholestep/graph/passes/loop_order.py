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

from wholestep.graph.call import fence
from wholestep.graph.scan import loop
from wholestep.graph.step import StepGraph, copy_graph, graphs


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
    graph = backward_loop.graph
    order = list(graph.nodes)
    before = set(order[: order.index(backward_loop)])
    needed = _needed_by(backward_loop)
    apart = [node for node in order if node in before - needed and _is_backward(node)]
    results = [node for node in apart if _is_tensor(node) and not before & node.users.keys()]
    # Of what is fenced off with it already, the loop needs the fence.
    results = [node for node in results if not (node.target is operator.getitem and node.args[0] in needed)]
    if not results:
        return
    read = {node for each in apart for node in each.all_input_nodes if node in needed}
    carried = backward_loop.args[1][0]
    ready = [node for node in order if node in read and node is not carried and _is_backward(node) and _is_tensor(node)]
    for node in apart:
        backward_loop.prepend(node)
    # First what the loop starts from, so that what only that needs (the head's weight) goes; then the rest.
    entry, *copies = _fenced([carried, *ready], apart[0])
    for node, copy in zip(ready, copies, strict=True):
        node.replace_all_uses_with(copy, delete_user_cb=lambda user: user in apart)
    start, *copies = _fenced([entry, *results], backward_loop)
    backward_loop.replace_input_with(carried, start)
    for node, copy in zip(results, copies, strict=True):
        node.replace_all_uses_with(copy, delete_user_cb=lambda user, fenced=copy.args[0]: user is not fenced)


def _fenced(nodes: list[fx.Node], place: fx.Node) -> list[fx.Node]:
    """These nodes fenced off together, before `place`."""
    graph = place.graph
    with graph.inserting_before(place):
        together = graph.call_function(fence, (nodes,))
        together.meta = {"val": tuple(node.meta["val"] for node in nodes), "module": "", "backward": True}
        results = [graph.call_function(operator.getitem, (together, i)) for i in range(len(nodes))]
    for node, result in zip(nodes, results, strict=True):
        result.meta = dict(node.meta)
    return results


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _needed_by(node: fx.Node) -> set[fx.Node]:
    needed: set[fx.Node] = set()
    rest = [node]
    while rest:
        for each in rest.pop().all_input_nodes:
            if each not in needed:
                needed.add(each)
                rest.append(each)
    return needed
