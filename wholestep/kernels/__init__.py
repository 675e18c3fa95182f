"""Kernels that JAX has no operator for, each with a plain path of JAX's operators. They know no torch."""
