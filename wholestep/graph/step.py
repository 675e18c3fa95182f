"""What a captured program is: an FX graph whose every input and output has a name, a shape and a place on the mesh."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._pytree import tree_leaves

Kind = Literal["parameter", "optimizer", "buffer", "batch", "scalar", "metric"]
STATE: frozenset[Kind] = frozenset({"parameter", "optimizer", "buffer"})

AxisNames = tuple[str, ...]
"""The mesh axes that one dimension is split over, outermost first; empty for none."""


@dataclass(frozen=True)
class Value:
    """One input or output of a step.

    Attributes:
        name: unique among the inputs, and among the outputs; the same name on both sides is the same state, before
            and after: `parameter/norm.weight`, `exp_avg/norm.weight`, `batch/tokens`, `scalar/learning_rate`.
        kind: what it is; parameters, optimizer state and buffers make up the state.
        shape: global shape, as stored (padded where the mesh does not divide it).
        dtype: torch dtype.
        placement: for each dimension the mesh axes that split it. An axis named nowhere holds a copy.
        members: where this is one parameter (or slot) of several layers, stacked along the first dimension: the
            names, without the `parameter/`, that it has in each. Of a metric with a number for each of several
            parameters, their names.
        memory: which memory of a device it lives in between steps, its own or its host's.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: torch.dtype
    placement: tuple[AxisNames, ...]
    members: tuple[str, ...] = ()
    memory: Literal["device", "host"] = "device"

    def stacked(self, name: str, members: tuple[str, ...]) -> Value:
        """Values like this one of several layers as one."""
        return dataclasses.replace(
            self, name=name, shape=(len(members), *self.shape), placement=((), *self.placement), members=members
        )

    def unstacked(self) -> tuple[Value, ...]:
        """The layers' own values, in device memory; this one alone if it is not stacked."""
        if not self.members:
            return (dataclasses.replace(self, memory="device"),)
        prefix = self.name.partition("/")[0]
        own = Value(prefix, self.kind, self.shape[1:], self.dtype, self.placement[1:])
        return tuple(dataclasses.replace(own, name=f"{prefix}/{member}") for member in self.members)

    def local_shape(self, axes: dict[str, int]) -> tuple[int, ...]:
        """The shape one device holds, on a mesh of these axis sizes."""
        local = []
        for size, names in zip(self.shape, self.placement, strict=True):
            for name in names:
                assert size % axes[name] == 0, f"{self.name}: {self.shape} does not divide over {names}"
                size //= axes[name]
            local.append(size)
        return tuple(local)


@dataclass(frozen=True)
class StepGraph:
    """A step as a pure function: `module(*inputs) -> outputs`, on the shards that one device holds.

    Attributes:
        module: the graph; placeholders in the order of `inputs`, outputs in the order of `outputs`. Every call node's
            `meta["val"]` is its fake result on one device, `meta["module"]` the path of the module it came from,
            `meta["line"]` the line of PyTorch (`attention.py:88`).
        inputs: what the placeholders are.
        outputs: what the results are.
        axes: mesh axis name -> size.
        notes: what a user should know of how it was captured: layers that could not be a loop, and why.
    """

    module: fx.GraphModule
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    axes: dict[str, int]
    notes: tuple[str, ...] = ()

    def check(self) -> None:
        """See that the graph's inputs and outputs have the shapes and dtypes that the signature says."""
        results = tree_leaves(self.module.graph.output_node().args[0])
        placeholders = self.module.graph.find_nodes(op="placeholder")
        for value, node in zip((*self.inputs, *self.outputs), (*placeholders, *results), strict=True):
            fake = node.meta["val"]
            assert (tuple(fake.shape), fake.dtype) == (value.local_shape(self.axes), value.dtype), (value, fake)

    def state(self) -> tuple[Value, ...]:
        """The inputs that make up the state."""
        return tuple(value for value in self.inputs if value.kind in STATE)


def graph_module(root: fx.GraphModule, graph: fx.Graph) -> fx.GraphModule:
    """`graph` as a module that takes from `root` the attributes it reads. Its code is generated when it is first
    called: most are only ever looked at."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a mesh is an attribute that is neither module nor buffer: that is intended
        return _LazyGraphModule(root, graph)


def copy_graph(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of `module` and of the bodies of its loops and calls that can be changed without touching the original."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    copied = graph_module(module, graph)
    for name, body in bodies(copied).items():
        setattr(copied, name, copy_graph(body))
    return copied


def bodies(module: fx.GraphModule) -> dict[str, fx.GraphModule]:
    """The bodies of `module`'s own loops and calls, by attribute; several calls may share one."""
    names = dict.fromkeys(str(node.target) for node in module.graph.find_nodes(op="get_attr"))
    read = {name: getattr(module, name) for name in names}
    return {name: body for name, body in read.items() if isinstance(body, fx.GraphModule)}


def graphs(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """`module` and, recursively, the bodies of its loops and calls."""
    yield module
    for body in bodies(module).values():
        yield from graphs(body)


def ancestors(node: fx.Node) -> set[fx.Node]:
    """`node` and all that it is computed from."""
    found, rest = {node}, [node]
    while rest:
        for source in rest.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                rest.append(source)
    return found
