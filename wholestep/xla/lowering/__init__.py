"""ATen -> JAX. Importing this package fills the table; each file is one family of operators."""

from wholestep.xla.lowering import (
    collectives,
    control,
    creation,
    elementwise,
    indexing,
    matmul,
    memory,
    random,
    reduction,
    scan,
    scatter,
    shape,
    sorting,
    strided,
)
from wholestep.xla.lowering.registry import LOWERINGS, Context, lowers

__all__ = [
    "LOWERINGS",
    "Context",
    "collectives",
    "control",
    "creation",
    "elementwise",
    "indexing",
    "lowers",
    "matmul",
    "memory",
    "random",
    "reduction",
    "scan",
    "scatter",
    "shape",
    "sorting",
    "strided",
]
