"""A traced graph as one jitted JAX function, outside of any step: an operator, a recording, a compiled module."""

from __future__ import annotations

from collections.abc import Callable

import jax
from torch import fx

from wholestep.graph.passes.dead_nodes import drop_dead_nodes
from wholestep.graph.passes.identities import drop_identities
from wholestep.graph.random import draws_numbers
from wholestep.xla.draws import Draws
from wholestep.xla.interpret import Interpreter, check_operators


class GraphFunction:
    """The graph's flat outputs as a function of its inputs, compiled once for each shape.

    Attributes:
        graph: what runs; of one device, without collectives.
        draws: whether it draws random numbers, from the key that it is called with.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        """Raises:
        LoweringError: operators of the graph have no lowering.
        """
        drop_identities(graph, {})
        drop_dead_nodes(graph)
        check_operators(graph)
        self.graph = graph
        self.draws = draws_numbers(graph)
        self.jitted: Callable[..., list[jax.Array]] = jax.jit(self.interpret)

    def interpret(self, key: jax.Array | None, *inputs: jax.Array) -> list[jax.Array]:
        """One node after the other; under another function's `jax.jit`, as a part of its program."""
        return Interpreter(Draws(key)).run(self.graph, *inputs)

    def __call__(self, key: jax.Array | None, *inputs: jax.Array) -> list[jax.Array]:
        """Run it; returns at once, with arrays that are ready later.

        Args:
            key: `jax.random.key` to draw from; None where nothing is drawn.
            inputs: one for each placeholder.
        """
        return self.jitted(key, *inputs)
