"""ATen -> JAX. Importing this package fills the table; each file is one family of operators."""

from wholestep.xla.lowering import (
    bessel,
    collectives,
    control,
    creation,
    elementwise,
    indexing,
    matmul,
    memory,
    polynomials,
    random,
    reduction,
    rounding,
    shape,
    special,
)
from wholestep.xla.lowering.registry import LOWERINGS, Context, lowers

__all__ = [
    "LOWERINGS",
    "Context",
    "bessel",
    "collectives",
    "control",
    "creation",
    "elementwise",
    "indexing",
    "lowers",
    "matmul",
    "memory",
    "polynomials",
    "random",
    "reduction",
    "rounding",
    "shape",
    "special",
]
