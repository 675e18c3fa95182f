"""Decompositions of linear algebra against what they decompose, the factors that gradients read included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import TOLERANCE
from torch import Tensor
from torch.testing import assert_close

from wholestep.errors import GraphError
from wholestep.graph.linear_algebra import DECOMPOSITIONS, lstsq

aten = torch.ops.aten

MATRICES: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.randn(2, 4, 4),
    "columns": lambda: torch.randn(2, 4, 4).mT,
    "part": lambda: torch.randn(4, 6)[:, :4],
    "complex": lambda: torch.randn(4, 4, dtype=torch.complex64),
    "singular": lambda: torch.ones(3, 3),
    "empty": lambda: torch.ones(2, 0, 0),
}


def check(operator: Any, *args: Any, **kwargs: Any) -> None:
    results, expected = DECOMPOSITIONS[operator](*args, **kwargs), operator(*args, **kwargs)
    expected = tuple(expected) if isinstance(expected, (tuple, list)) else expected
    assert_close(results, expected, rtol=TOLERANCE[torch.float32], atol=TOLERANCE[torch.float32])


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("operator", [aten._linalg_det.default, aten._linalg_slogdet.default], ids=str)
def test_determinants(operator: Any, matrix: str) -> None:
    check(operator, MATRICES[matrix]())


@pytest.mark.parametrize("matrix", sorted(set(MATRICES) - {"singular"}))
def test_solutions(matrix: str) -> None:
    x = MATRICES[matrix]()
    size = x.shape[-1]
    check(aten.linalg_inv_ex.default, x)
    for left, b in [(True, (size, 3)), (True, (2, size, 3)), (False, (3, size)), (True, (size,)), (True, x.shape[:-1])]:
        check(aten._linalg_solve_ex.default, x, torch.randn(b, dtype=x.dtype), left=left)


@pytest.mark.parametrize("tolerance", [{}, {"rtol": 0.5}, {"atol": 0.5}, {"atol": 0.1, "rtol": 0.5}], ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 3), (3, 4), (0, 3)], ids=str)
def test_pseudoinverse(shape: tuple[int, ...], tolerance: dict[str, float]) -> None:
    kwargs = {name: torch.tensor(value, dtype=torch.float64) for name, value in tolerance.items()}
    check(aten.linalg_pinv.atol_rtol_tensor, torch.randn(shape), **kwargs)


def test_pseudoinverse_of_a_hermitian_matrix() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.complex64)
    check(aten.linalg_pinv.atol_rtol_tensor, x @ x.mH, hermitian=True)
    check(aten.linalg_pinv.atol_rtol_tensor, x.mH @ x, rtol=torch.tensor(1e-3), hermitian=True)


def test_pseudoinverse_of_float64_is_that_of_what_a_program_can_tell_apart() -> None:
    x = torch.diag(torch.tensor([1.0, 1e-9], dtype=torch.float64))
    for rtol in (None, torch.tensor(1e-15)):
        result = DECOMPOSITIONS[aten.linalg_pinv.atol_rtol_tensor](x, rtol=rtol)
        assert_close(result, torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64)))


@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 3), (2, 0, 3)], ids=str)
def test_least_squares(shape: tuple[int, ...], driver: str | None) -> None:
    x, b = torch.randn(shape) + 3 * torch.eye(*shape[-2:]), torch.randn(*shape[:-1], 2)
    if driver in ("gelsd", "gelss") and shape[-2] > shape[-1]:
        with pytest.raises(GraphError, match="residuals or none"):
            lstsq(x, b, driver=driver)
        return
    check(aten.linalg_lstsq.default, x, b, driver=driver)
    if len(shape) == 3:
        check(aten.linalg_lstsq.default, x, b[..., 0], driver=driver)


def test_least_squares_without_full_rank() -> None:
    x = torch.randn(4, 1) @ torch.randn(1, 3)
    check(aten.linalg_lstsq.default, x, torch.randn(4, 2))
