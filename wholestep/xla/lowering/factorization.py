"""Factorizations of matrices, which come in batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.errors import LoweringError
from wholestep.xla.chips import chip_lowered_for
from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten


def adjoint(x: jax.Array) -> jax.Array:
    """The conjugate transpose of each matrix."""
    return jnp.conj(x.mT)


def _nothing(x: jax.Array) -> jax.Array:
    """What PyTorch returns for a factor that was not asked for."""
    return jnp.zeros(0, x.dtype)


@lowers(aten._linalg_svd.default)
def svd(
    x: jax.Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> list[jax.Array]:
    if compute_uv:
        return list(jnp.linalg.svd(x, full_matrices=full_matrices))
    return [_nothing(x), jnp.linalg.svd(x, compute_uv=False), _nothing(x)]


@lowers(aten._linalg_eigh.default)
def eigh(x: jax.Array, uplo: str = "L", compute_v: bool = True) -> list[jax.Array]:
    # PyTorch reads one triangle only.
    half = jnp.tril(x, -1) if uplo.upper() == "L" else jnp.triu(x, 1)
    diagonal = jnp.where(jnp.eye(x.shape[-1], dtype=bool), jnp.real(x), 0)
    vectors, values = lax.linalg.eigh(half + adjoint(half) + diagonal, symmetrize_input=False)
    return [values, vectors if compute_v else _nothing(x)]


@lowers(aten.linalg_eig.default)
def eig(x: jax.Array) -> list[jax.Array]:
    values, vectors = lax.linalg.eig(_for_eig(x), compute_left_eigenvectors=False)
    return [values, vectors]


@lowers(aten._linalg_eigvals.default)
def eigvals(x: jax.Array) -> jax.Array:
    (values,) = lax.linalg.eig(_for_eig(x), compute_left_eigenvectors=False, compute_right_eigenvectors=False)
    return values


def _for_eig(x: jax.Array) -> jax.Array:
    if chip_lowered_for() is not None:
        raise LoweringError("eigenvalues of a matrix that is not Hermitian have no lowering to TPUs")
    return x


@lowers(aten.linalg_qr.default)
def qr(x: jax.Array, mode: str = "reduced") -> list[jax.Array]:
    if mode == "r":
        return [_nothing(x), jnp.linalg.qr(x, mode="r")]
    return list(jnp.linalg.qr(x, mode=mode))


@lowers(aten.geqrf.default)
def geqrf(x: jax.Array) -> list[jax.Array]:
    reflectors, scales = jnp.linalg.qr(x, mode="raw")
    return [reflectors.mT, scales]


@lowers(aten.linalg_householder_product.default)
def householder_product(reflectors: jax.Array, scales: jax.Array) -> jax.Array:
    return lax.linalg.householder_product(reflectors, scales)


@lowers(aten.ormqr.default)
def ormqr(
    reflectors: jax.Array, scales: jax.Array, other: jax.Array, left: bool = True, transpose: bool = False
) -> jax.Array:
    return lax.linalg.ormqr(reflectors, scales, other, left=left, transpose=transpose)


@lowers(aten.cholesky.default)
def cholesky(x: jax.Array, upper: bool = False) -> jax.Array:
    # PyTorch reads one triangle only.
    return adjoint(cholesky(adjoint(x))) if upper else lax.linalg.cholesky(x, symmetrize_input=False)


@lowers(aten.linalg_cholesky_ex.default)
def cholesky_ex(x: jax.Array, *, upper: bool = False, check_errors: bool = False) -> list[jax.Array]:
    factor = cholesky(x, upper)
    # A factorization that fails is all NaN. PyTorch would say where it stopped; what matters is that it is not 0.
    failed = jnp.any(jnp.isnan(factor), (-2, -1))
    return [factor, failed.astype(jnp.int32)]


@lowers(aten.linalg_lu_factor_ex.default)
def lu_factor_ex(x: jax.Array, *, pivot: bool = True, check_errors: bool = False) -> list[jax.Array]:
    if not pivot:
        raise LoweringError("LU without pivoting has no lowering to XLA")
    lu, pivots, _ = lax.linalg.lu(x)
    return [lu, pivots + 1, _first(jnp.diagonal(lu, axis1=-2, axis2=-1) == 0)]


def _first(flags: jax.Array) -> jax.Array:
    """The 1-based place of the first that is true, 0 where none is: LAPACK's way to say what failed."""
    numbers = jnp.arange(1, flags.shape[-1] + 1, dtype=jnp.int32)
    first = jnp.min(jnp.where(flags, numbers, flags.shape[-1] + 1), -1, initial=flags.shape[-1] + 1)
    return jnp.where(jnp.any(flags, -1), first, 0).astype(jnp.int32)


def permutation(pivots: jax.Array, rows: int) -> jax.Array:
    """int32[..., rows] such that, with the pivots of `lu_factor_ex`, `x[permutation] == l @ u`."""
    return lax.linalg.lu_pivots_to_permutation(pivots - 1, rows)


@lowers(aten.lu_unpack.default)
def lu_unpack(
    lu: jax.Array, pivots: jax.Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> list[jax.Array]:
    rows, columns = lu.shape[-2:]
    smaller = min(rows, columns)
    p = lower = upper = _nothing(lu)
    if unpack_pivots:
        p = jax.nn.one_hot(permutation(pivots, rows), rows, dtype=lu.dtype, axis=-2)
    if unpack_data:
        lower = jnp.tril(lu[..., :smaller], -1) + jnp.eye(rows, smaller, dtype=lu.dtype)
        upper = jnp.triu(lu[..., :smaller, :])
    return [p, lower, upper]


@lowers(aten.linalg_lu.default)
def lu(x: jax.Array, *, pivot: bool = True) -> list[jax.Array]:
    factors, pivots, _ = lu_factor_ex(x, pivot=pivot)
    return lu_unpack(factors, pivots)
