"""`as_strided` reads a storage, not the tensor that it is given: what owns the storage is given to it instead."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


def read_strided_from_owners(graph_module: fx.GraphModule) -> None:
    """Replace, in place, the view that an `as_strided` is given by the tensor that it is a view of, which holds all
    that can be read through it."""
    for node in graph_module.graph.find_nodes(op="call_function", target=aten.as_strided.default):
        view, size, stride, *offset = node.args
        owner = _owner(view)
        start = next((value for value in offset if value is not None), view.meta["val"].storage_offset())
        node.args = (owner, size, stride, start)


def _owner(node: fx.Node) -> fx.Node:
    storage = _storages(node)
    while True:
        source = next((source for source in node.all_input_nodes if storage <= _storages(source)), None)
        if source is None:
            return node
        node = source


def _storages(node: fx.Node) -> set[int]:
    return {leaf.untyped_storage()._cdata for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)}
