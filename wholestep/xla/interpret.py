"""Run a step graph's nodes as JAX functions; under `jax.jit` that is what lowers it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from wholestep.errors import LoweringError
from wholestep.graph.step import graphs
from wholestep.xla.draws import Draws
from wholestep.xla.dtypes import carried, to_program
from wholestep.xla.jax_op import check_donations
from wholestep.xla.lowering import LOWERINGS
from wholestep.xla.scope import scope


def check_operators(module: fx.GraphModule) -> None:
    """See that every operator of `module` and of its loop bodies has a lowering, and what it is given.

    Raises:
        LoweringError: all those that have none, each with the modules whose forward or gradient uses it; or something
            reads what was donated to an operator before.
    """
    missing: dict[str, set[str]] = defaultdict(set)
    for graph_module in graphs(module):
        check_donations(graph_module.graph)
        for node in graph_module.graph.nodes:
            if node.op == "call_function" and node.target not in LOWERINGS:
                direction = " (gradient)" if node.meta.get("backward") else ""
                missing[str(node.target)].add((node.meta.get("module") or "the root module") + direction)
    if missing:
        lines = [f"  {operator}: in {', '.join(sorted(paths)[:5])}" for operator, paths in sorted(missing.items())]
        raise LoweringError("these operators have no lowering to XLA yet:\n" + "\n".join(lines))


class Interpreter:
    """Interprets graphs with JAX values, checking each result against the node's fake tensor.

    Attributes:
        node: the node that is being run.
        draws: where it draws random numbers from.
    """

    node: fx.Node

    def __init__(self, draws: Draws | None = None) -> None:
        self.draws = draws or Draws(None)

    def run(self, module: fx.GraphModule, *args: jax.Array, draws: Draws | None = None) -> list[jax.Array]:
        """The graph's flat outputs for these inputs."""
        values: dict[fx.Node, Any] = {}
        inputs = iter(args)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(inputs)
            elif node.op == "get_attr":
                attribute = getattr(module, node.target)
                values[node] = _constant(node, attribute) if isinstance(attribute, torch.Tensor) else attribute
            elif node.op == "output":
                return list(fx.map_arg(tree_leaves(node.args[0]), values.__getitem__))
            else:
                before = getattr(self, "node", node), self.draws
                self.node, self.draws = node, draws or self.draws
                values[node] = self._call(node, values)
                self.node, self.draws = before
        raise AssertionError("a graph without output")

    def _call(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        lowering = LOWERINGS[node.target]
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        with jax.named_scope(scope(node)):
            result = (
                lowering.function(self, *args, **kwargs)
                if lowering.needs_context
                else lowering.function(*args, **kwargs)
            )
        _check(node, result)
        return result


def _constant(node: fx.Node, value: torch.Tensor) -> jax.Array:
    with jax.ensure_compile_time_eval():  # one on the device is read
        value = value.detach().cpu()
    array = (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # NumPy has no bfloat16
    try:
        return jnp.asarray(to_program(str(node.target), array, value.dtype))
    except ValueError as error:  # an integer that does not fit
        raise LoweringError(f"a constant has no value in the program: {error}") from error


def _check(node: fx.Node, result: Any) -> None:
    """A lowering cannot be silently wrong about shape or promotion."""
    expected, got = tree_leaves(node.meta.get("val")), tree_leaves(result)
    for want, have in zip(expected, got, strict=len(expected) > 0):
        if isinstance(want, torch.Tensor) and (tuple(want.shape), carried(want.dtype)) != (have.shape, have.dtype):
            raise LoweringError(
                f"the lowering of {node.target} gave {have.dtype}{list(have.shape)} where PyTorch gives "
                f"{want.dtype}{list(want.shape)} (in {node.meta.get('module') or 'the root module'})"
            )
