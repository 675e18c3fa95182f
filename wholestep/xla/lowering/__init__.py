"""ATen -> JAX. Importing this package fills the table; each file is one family of operators."""

import importlib
import pkgutil

from wholestep.xla.lowering.registry import LOWERINGS, Context, lowers

for _family in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_family.name}")

__all__ = ["LOWERINGS", "Context", "lowers"]
