"""The passes, in order. A pass is a pure function `StepGraph -> StepGraph`.

`EXACT` passes keep every result bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

from wholestep.graph.passes.dead_nodes import remove_dead_nodes
from wholestep.graph.passes.identities import remove_identities
from wholestep.graph.passes.loop_order import finish_before_loops
from wholestep.graph.passes.plain_products import fence_products
from wholestep.graph.step import StepGraph

Pass = Callable[[StepGraph], StepGraph]

EXACT: tuple[Pass, ...] = (remove_identities, remove_dead_nodes, fence_products, finish_before_loops)


def run_passes(step: StepGraph) -> StepGraph:
    """`step` after every pass."""
    for run in EXACT:
        step = run(step)
    return step
