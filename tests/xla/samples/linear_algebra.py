"""Complex numbers, Fourier transforms, factorizations, linear systems, special functions."""

from __future__ import annotations

import torch
from torch import Tensor
from xla.samples.table import (
    SPECIAL,
    SPREAD,
    Sample,
    aten,
    bf16,
    c64,
    definite,
    f32,
    flags,
    i64,
    inf,
    operator_named,
    row,
)

ROWS = [
    # Complex numbers. (Elementwise arithmetic with them: tests/operators.)
    *(row(op, c64(2, 3)) for op in (aten._conj_physical.default, aten.conj_physical.default, aten.angle.default)),
    *(
        row(op, c64(2, 3))
        for op in (aten._conj.default, aten.real.default, aten.imag.default, aten.view_as_real.default)
    ),
    row(aten._neg_view.default, f32(2, 3)),
    row(aten.view_as_complex.default, f32(2, 3, 2)),
    *(row(aten.angle.default, x) for x in (f32(4), bf16(4), SPECIAL, i64(5), flags(4))),
    row(aten.complex.default, f32(2, 3), f32(3)),
    row(aten.polar.default, f32(2, 3), f32(3)),
    *(row(operator_named(name), c64(3)) for name in ("abs", "exp", "neg", "reciprocal", "sqrt", "tanh", "logical_not")),
    *(
        row(operator_named(name, "Tensor"), x, y)
        for name in ("add", "sub", "mul", "div", "eq", "ne")
        for x, y in [(c64(3), c64(3)), (c64(3), f32(3)), (i64(3), c64()), (c64(3), 2.5), (f32(), c64(3))]
        if isinstance(y, Tensor) or name in ("add", "sub", "mul", "div")
    ),
    *(row(operator_named(name, "Tensor"), f32(3), 1 + 2j) for name in ("add", "sub", "mul", "div")),
    *(row(aten._to_copy.default, x, dtype=torch.complex64) for x in (f32(3), i64(3), flags(3))),
    row(aten._to_copy.default, c64(3), dtype=torch.bool),
    *(row(aten.mm.default, c64(2, 3), x) for x in (c64(3, 4), c64(4, 3).mH)),
    row(aten.sum.dim_IntList, c64(2, 3), [1]),
    # Fourier transforms.
    *(
        row(aten._fft_r2c.default, f32(2, 5, 6), dims, scaling, onesided)
        for dims in ([2], [0, 1], [2, 0, 1])
        for scaling in (0, 1, 2)
        for onesided in (True, False)
    ),
    *(
        row(aten._fft_c2c.default, c64(2, 5, 6), dims, scaling, forward)
        for dims in ([1], [2, 0], [0, 1, 2], [])
        for scaling in (0, 1, 2)
        for forward in (True, False)
    ),
    row(aten._fft_c2c.default, c64(2, 3, 4, 2), [0, 1, 2, 3], 0, True),
    *(
        row(aten._fft_c2r.default, torch.fft.rfftn(f32(2, 5, size), dim=dims), dims, scaling, size)
        for dims in ([2], [0, 2], [0, 1, 2])
        for scaling in (0, 1, 2)
        for size in (6, 7)
    ),
    # Factorizations. Of those that are not unique, what is; tests/operators put the rest together again.
    *(row(aten._linalg_svd.default, x, False, False) for x in (f32(3, 4), f32(2, 4, 3), c64(3, 3), f32(0, 3))),
    *(
        Sample(aten._linalg_svd.default, (make(2, 3, 4), full), {}, aten._linalg_svd.default, values=False)
        for make in (f32, c64)
        for full in (False, True)
    ),
    *(row(aten._linalg_eigh.default, x, uplo, False) for x in (f32(2, 3, 3), c64(3, 3)) for uplo in "LU"),
    Sample(aten._linalg_eigh.default, (f32(2, 3, 3),), {}, aten._linalg_eigh.default, values=False),
    Sample(aten._linalg_eigh.default, (c64(3, 3), "U"), {}, aten._linalg_eigh.default, values=False),
    *(
        Sample(aten.linalg_eig.default, (x,), {}, aten.linalg_eig.default, values=False)
        for x in (f32(2, 3, 3), c64(3, 3))
    ),
    row(aten._linalg_eigvals.default, torch.tensor([[1.0, 2], [-3, 0.5]])),
    *(
        row(aten.linalg_qr.default, f32(2, *shape), mode)
        for shape in [(3, 4), (4, 3)]
        for mode in ("reduced", "complete", "r")
    ),
    row(aten.linalg_qr.default, c64(4, 3)),
    *(row(aten.geqrf.default, f32(2, *shape)) for shape in [(3, 4), (4, 3)]),
    *(row(aten.linalg_householder_product.default, f32(2, *shape) / 4, f32(2, 2)) for shape in [(4, 2), (4, 3)]),
    *(
        row(aten.ormqr.default, f32(4, 3) / 4, f32(3), other, left, transposed)
        for other, left in [(f32(4, 2), True), (f32(2, 4), False)]
        for transposed in (False, True)
    ),
    *(
        row(op, definite(make, 2, 3, 3), **options)
        for op in (aten.cholesky.default, aten.linalg_cholesky_ex.default)
        for make in (f32, c64)
        for options in ({}, {"upper": True})
    ),
    *(
        row(op, x)
        for op in (aten.linalg_lu_factor_ex.default, aten.linalg_lu.default)
        for x in (f32(2, 3, 4), f32(4, 3), c64(3, 3), torch.ones(2, 3, 3), f32(2, 0, 3))
    ),
    *(
        row(aten.lu_unpack.default, *torch.linalg.lu_factor(x), *options)
        for x in (f32(2, 3, 4), f32(4, 3), c64(3, 3))
        for options in [(), (False,), (True, False)]
    ),
    # Linear systems.
    *(
        row(aten.linalg_solve_triangular.default, x + 3 * torch.eye(3), b, upper=upper, left=left, unitriangular=unit)
        for x, b, left in [
            (f32(2, 3, 3), f32(3, 4), True),
            (f32(3, 3), f32(2, 4, 3), False),
            (c64(3, 3), c64(3, 1), True),
        ]
        for upper in (False, True)
        for unit in (False, True)
    ),
    *(
        row(aten.triangular_solve.default, f32(3, 2), f32(2, 3, 3) + 3 * torch.eye(3), *options)
        for options in [(), (False,), (True, True), (False, True, True)]
    ),
    *(
        row(aten.linalg_lu_solve.default, *torch.linalg.lu_factor(x), b, left=left, adjoint=adjoint)
        for x, b, left in [
            (f32(2, 3, 3), f32(3, 4), True),
            (f32(3, 3), f32(2, 4, 3), False),
            (c64(3, 3), c64(4, 3), False),
        ]
        for adjoint in (False, True)
    ),
    *(
        row(op, *before, torch.linalg.cholesky(definite(make, 2, 3, 3)), *after)
        for make in (f32, c64)
        for op, before in [(aten.cholesky_solve.default, (make(3, 2),)), (aten.cholesky_inverse.default, ())]
        for after in [(), (False,)]
    ),
    row(aten.cholesky_inverse.default, torch.linalg.cholesky(definite(f32, 3, 3), upper=True), True),
    row(aten._cholesky_solve_helper.default, f32(2, 3, 2), torch.linalg.cholesky(definite(f32, 2, 3, 3)), False),
    *(row(aten.linalg_matrix_exp.default, x) for x in (f32(2, 3, 3), c64(2, 2), f32(0, 3, 3))),
    # Distances.
    *(row(aten._cdist_forward.default, f32(2, 3, 5), f32(4, 5), p, None) for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, inf)),
    *(row(aten._cdist_forward.default, x, f32(4, 0), 2.0, None) for x in (f32(3, 0), f32(2, 3, 0))),
    *(
        row(aten._cdist_backward.default, f32(4, 4), SPREAD, SPREAD, p, torch.cdist(SPREAD, SPREAD, p))
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, inf)
    ),
    # The gamma function.
    *(
        row(op, x)
        for op in (aten.lgamma.default, aten.digamma.default)
        for x in (f32(20) * 4, bf16(4), i64(4, low=1), SPECIAL)
    ),
    *(row(op, f32(9).abs() * 3, f32(9).abs() * 3) for op in (aten.igamma.default, aten.igammac.default)),
    *(row(aten.polygamma.default, n, x) for n in range(4) for x in (f32(9).abs() + 0.1, i64(4, low=1))),
    *(
        row(aten.addbmm.default, x, f32(2, 3, 4), f32(2, 4, 5), **options)
        for x in (f32(3, 5), f32(5))
        for options in ({}, {"beta": 0.5, "alpha": -2})
    ),
]
