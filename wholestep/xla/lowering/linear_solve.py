"""Solving linear systems with matrices, which come in batches, and what is computed that way."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.errors import LoweringError
from wholestep.xla.lowering.factorization import adjoint, permutation
from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten


def _broadcast(*matrices: jax.Array) -> list[jax.Array]:
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in matrices))
    return [jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in matrices]


@lowers(aten.linalg_solve_triangular.default)
def solve_triangular(
    x: jax.Array,
    b: jax.Array,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
    transposed: bool = False,
    conjugated: bool = False,
) -> jax.Array:
    x, b = _broadcast(x, b)
    return lax.linalg.triangular_solve(
        x,
        b,
        left_side=left,
        lower=not upper,
        transpose_a=transposed,
        conjugate_a=conjugated,
        unit_diagonal=unitriangular,
    )


@lowers(aten.triangular_solve.default)
def triangular_solve(
    b: jax.Array, x: jax.Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> list[jax.Array]:
    solution = solve_triangular(x, b, upper=upper, unitriangular=unitriangular, transposed=transpose)
    return [solution, _broadcast(x, b)[0]]


@lowers(aten.linalg_lu_solve.default)
def lu_solve(lu: jax.Array, pivots: jax.Array, b: jax.Array, *, left: bool = True, adjoint: bool = False) -> jax.Array:
    if not left:
        return jnp.conj(lu_solve(lu, pivots, jnp.conj(b.mT), adjoint=not adjoint).mT)
    lu, b, order = _broadcast(lu, b, permutation(pivots, lu.shape[-1])[..., None])
    if not adjoint:
        half = solve_triangular(lu, jnp.take_along_axis(b, order, -2), upper=False, unitriangular=True)
        return solve_triangular(lu, half, upper=True)
    half = solve_triangular(lu, b, upper=True, transposed=True, conjugated=True)
    whole = solve_triangular(lu, half, upper=False, unitriangular=True, transposed=True, conjugated=True)
    return jnp.take_along_axis(whole, jnp.argsort(order, -2), -2)


@lowers(aten.cholesky_solve.default, aten._cholesky_solve_helper.default)
def cholesky_solve(b: jax.Array, factor: jax.Array, upper: bool = False) -> jax.Array:
    lower = adjoint(factor) if upper else factor
    half = solve_triangular(lower, b, upper=False)
    return solve_triangular(lower, half, upper=False, transposed=True, conjugated=True)


@lowers(aten.cholesky_inverse.default)
def cholesky_inverse(factor: jax.Array, upper: bool = False) -> jax.Array:
    return cholesky_solve(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor, upper)


@lowers(aten.linalg_matrix_exp.default)
def matrix_exp(x: jax.Array) -> jax.Array:
    if x.dtype.itemsize < 4:
        raise LoweringError(f"matrix_exp of {x.dtype} has no lowering to XLA (PyTorch's is not finite); use float32")
    return jax.scipy.linalg.expm(x) if x.size else x
