"""Matrix products."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten

_PRECISION = {"highest": lax.Precision.HIGHEST, "high": lax.Precision.HIGH, "medium": lax.Precision.DEFAULT}


def precision() -> lax.Precision:
    """What PyTorch's global setting asks of fp32 products. JAX's default on TPU would be one bf16 pass."""
    return _PRECISION[torch.get_float32_matmul_precision()]


@contextlib.contextmanager
def with_precision(setting: str) -> Iterator[None]:
    """Lower products as if `torch.set_float32_matmul_precision(setting)` held."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@lowers(aten.mm.default)
def mm(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.dot(x, y, precision=precision())


@lowers(aten.bmm.default)
def bmm(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,))), precision=precision())


@lowers(aten.addmm.default)
def addmm(bias: jax.Array, x: jax.Array, y: jax.Array, *, beta: float = 1, alpha: float = 1) -> jax.Array:
    if x.dtype.kind in "iu":
        beta, alpha = int(beta), int(alpha)
    product = mm(x, y) if alpha == 1 else mm(x, y) * alpha
    if beta == 0:  # not even a NaN of the bias comes through
        return product
    return (bias if beta == 1 else bias * beta) + product


@lowers(aten.addbmm.default)
def addbmm(bias: jax.Array, x: jax.Array, y: jax.Array, *, beta: float = 1, alpha: float = 1) -> jax.Array:
    """The sum of a batch of products is one product."""
    return addmm(bias, x.swapaxes(0, 1).reshape(x.shape[1], -1), y.reshape(-1, y.shape[-1]), beta=beta, alpha=alpha)


@lowers(aten._trilinear.default)
def trilinear(
    x: jax.Array,
    y: jax.Array,
    z: jax.Array,
    expand_x: Sequence[int],
    expand_y: Sequence[int],
    expand_z: Sequence[int],
    sum_dims: Sequence[int],
    unroll_dim: int = 1,
) -> jax.Array:
    """A product of three, each without the dimensions that it is expanded by, summed over some dimensions."""
    dims = range(x.ndim + len(expand_x))
    has = [[dim for dim in dims if dim not in expanded] for expanded in (expand_x, expand_y, expand_z)]
    kept = [dim for dim in dims if dim not in sum_dims]
    operands = (operand for pair in zip((x, y, z), has, strict=True) for operand in pair)
    product = jnp.einsum(*operands, kept, precision=precision(), preferred_element_type=jnp.float32)
    return product.astype(x.dtype)
