"""Kernels: config nodes that replace a block of a model by one that runs faster or in less memory.

Each file holds a kernel's JAX function, the operator that it is in PyTorch, and the node that turns it on, by name:
`--set model.layers.*.attention.inner=splash`. Importing this package makes all names known.
"""

from wholestep.kernels import fused_cross_entropy, splash_attention

__all__ = ["fused_cross_entropy", "splash_attention"]
