"""Operators that write in place -> the operators that return what would have been written.

A traced graph is a function of values. Tracing already lets whatever reads a tensor after a write read the write's
result, so the two are the same unless a *view* of the tensor is about: a write through a view, or a view that is read
after a write to its base. Those are refused.
"""

from __future__ import annotations

import torch
from torch import fx

from wholestep.errors import GraphError

aten = torch.ops.aten

# Where the operator that returns the value is not the writing one's name without the underscore.
_RETURNING = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.normal_.default: aten.normal_functional.default,
}


def remove_writes(graph_module: fx.GraphModule) -> None:
    """Replace, in place, every writing operator of this graph (not of its bodies).

    Raises:
        GraphError: a write that another view would see, or that has no returning form; all of them, with the modules
            they are in.
    """
    graph = graph_module.graph
    writes = [node for node in graph.nodes if _writes(node)]
    if not writes:
        return
    order = {node: i for i, node in enumerate(graph.nodes)}
    returning = {node: _returning(node.target) for node in writes if not _seen_by_a_view(node, order)}
    refused = {
        f"  {node.target}: in {node.meta.get('module') or 'the root module'}"
        for node in writes
        if returning.get(node) is None
    }
    if refused:
        raise GraphError(
            "these operators write in place into what others see; use their other forms:\n" + "\n".join(sorted(refused))
        )
    for node, target in returning.items():
        node.target = target
    graph_module.recompile()


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _returning(operator: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    if operator in _RETURNING:
        return _RETURNING[operator]
    name = operator._schema.name.removeprefix("aten::")
    packet = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, operator._overloadname, None) if packet is not None else None


def _seen_by_a_view(write: fx.Node, order: dict[fx.Node, int]) -> bool:
    """Whether the written tensor is a view, or has one that is read after the write."""
    base = write.args[0]
    versions = [base]
    while isinstance(base, fx.Node) and _writes(base):
        base = base.args[0]
        versions.append(base)
    if not isinstance(base, fx.Node) or _is_view(base):
        return True
    views = [user for version in versions for user in version.users if _is_view(user)]
    while views:
        view = views.pop()
        if any(order[user] > order[write] for user in view.users):
            return True
        views += [user for user in view.users if _is_view(user)]
    return False


def _is_view(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
