"""Decompositions of linear algebra: into factorizations and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from wholestep.errors import GraphError

aten = torch.ops.aten


def solve_ex(
    x: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lu, pivots, info = aten.linalg_lu_factor_ex(x)
    vector = b.ndim == 1 or b.shape == x.shape[:-1]
    result = aten.linalg_lu_solve(lu, pivots, b.unsqueeze(-1) if vector else b, left=left)
    return result.squeeze(-1) if vector else result, lu, pivots, info


def inv_ex(x: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand_as(x)
    inverse, _, _, info = solve_ex(x, identity)
    return inverse, info


def det(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lu, pivots = _factors(x)
    return _parity(pivots).to(x.dtype) * lu.diagonal(0, -2, -1).prod(-1), lu, pivots


def slogdet(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lu, pivots = _factors(x)
    diagonal = lu.diagonal(0, -2, -1)
    return _parity(pivots).to(x.dtype) * diagonal.sgn().prod(-1), diagonal.abs().log().sum(-1), lu, pivots


def _factors(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of the transpose, where PyTorch takes that: the gradient reads the factors and makes the same choice."""
    lu, pivots, _ = aten.linalg_lu_factor_ex(x.mT if x.is_contiguous() and not x.is_complex() else x)
    return lu, pivots


def _parity(pivots: Tensor) -> Tensor:
    """1 or -1: of the permutation that these swaps of a row with a later one, numbered from 1, are."""
    swaps = pivots != torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return 1 - 2 * (swaps.sum(-1) % 2)


def pinv(x: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    """By the singular values that are larger than the tolerances say."""
    if x.numel() == 0:
        return x.new_zeros(*x.shape[:-2], x.shape[-1], x.shape[-2])
    if hermitian:
        values, right = torch.linalg.eigh(x)
        left, sizes = right, values.abs()
    else:
        left, values, adjoint = torch.linalg.svd(x, full_matrices=False)
        right, sizes = adjoint.mH, values
    if rtol is None:
        relative = sizes.new_full((1,), 0.0 if atol is not None else _rounding(x))
    else:
        relative = rtol.to(sizes.dtype).unsqueeze(-1)
    if x.dtype in (torch.float64, torch.complex128):
        relative = relative.clamp(min=_rounding(x))
    tolerance = relative * sizes.amax(-1, keepdim=True)
    if atol is not None:
        tolerance = torch.maximum(atol.unsqueeze(-1), tolerance)
    inverted = torch.where(sizes > tolerance, values.reciprocal(), 0)
    return (right * inverted.unsqueeze(-2)) @ left.mH


def _rounding(x: Tensor) -> float:
    """What counts as 0 beside the largest singular value. Programs carry float64 as float32."""
    return max(torch.finfo(x.dtype).eps, torch.finfo(torch.float32).eps) * max(x.shape[-2:])


def lstsq(
    x: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Whatever the driver, by singular values; `gels` takes the matrix for one of full rank.

    Raises:
        GraphError: the driver has residuals or none, as the rank turns out.
    """
    driver = driver or "gelsy"
    rows, columns = x.shape[-2:]
    if rows > columns and driver in ("gelsd", "gelss"):
        raise GraphError(f"torch.linalg.lstsq with driver={driver!r} has residuals or none, depending on values")
    vector = b.ndim == 1 or b.shape == x.shape[:-1]
    targets = b.unsqueeze(-1) if vector else b
    left, values, adjoint = torch.linalg.svd(x, full_matrices=False)
    largest = values.amax(-1, keepdim=True) if values.numel() else values
    kept = values > largest * (0 if driver == "gels" else _rounding(x) if rcond is None else rcond)
    inverted = torch.where(kept, values.reciprocal(), 0).unsqueeze(-1)
    solution = adjoint.mH @ (inverted * (left.mH @ targets))
    residuals, rank, sizes = values.new_empty(0), kept.new_empty(0, dtype=torch.int64), values.new_empty(0)
    if driver == "gels" and rows > columns:
        residuals = (x @ solution - targets).abs().square().sum(-2)
    if driver != "gels":
        rank = kept.sum(-1)
    if driver in ("gelsd", "gelss"):
        sizes = values
    return solution.squeeze(-1) if vector else solution, residuals, rank, sizes


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._linalg_solve_ex.default: solve_ex,
    aten.linalg_inv_ex.default: inv_ex,
    aten._linalg_det.default: det,
    aten._linalg_slogdet.default: slogdet,
    aten.linalg_pinv.atol_rtol_tensor: pinv,
    aten.linalg_lstsq.default: lstsq,
}
