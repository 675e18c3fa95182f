"""A function of tensors as a captured graph, and as one program for a mesh, which may be of a TPU that is not here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode

from wholestep.graph.passes.identities import drop_identities
from wholestep.graph.trace import trace
from wholestep.xla.dtypes import carried
from wholestep.xla.interpret import Interpreter, check_operators


def captured(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    """`function`, of tensors like `inputs`, which may be on meta."""
    with FakeTensorMode():
        graph = trace(function, [torch.empty(x.shape, dtype=x.dtype) for x in inputs])
    drop_identities(graph, {})
    return graph


def lowered(graph: fx.GraphModule, mesh: jax.sharding.Mesh, *inputs: Tensor) -> jax.stages.Lowered:
    """The graph as one program, under `shard_map`, in which every device computes the same."""
    check_operators(graph)
    spec = jax.sharding.PartitionSpec()
    function = jax.shard_map(
        functools.partial(Interpreter().run, graph), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    replicated = jax.sharding.NamedSharding(mesh, spec)
    specs = [jax.ShapeDtypeStruct(tuple(x.shape), carried(x.dtype), sharding=replicated) for x in inputs]
    return jax.jit(function).lower(*specs)
