"""Matmuls of a mixture of experts on TPU: rows sorted by expert, each expert's rows by its own weights.

Pallas kernels. A block of an expert's weights stays in fast memory (VMEM) while all tiles of the expert's rows pass by,
and which tiles those are is read from a list (`wholestep.kernels.group_visits`) that the scalar core has before the
kernel starts.

R rows, K contraction width, N output width, E experts, V visits. One kernel serves products of either orientation:
there C is the width that is contracted and W that of the output.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from wholestep.kernels.group_visits import group_visits
from wholestep.kernels.grouped_matmul_tiles import VMEM_BYTES, Tiling, row_tiles, weight_tiles
from wholestep.kernels.ragged_dot import matmul_precision

# A tile of rows is multiplied in blocks, of which those without a row of the expert are skipped: a tile can be as large
# as transfers like it, and what an expert's boundaries waste is a part of a block. By the compiler's schedules for v6e
# 128 rows keep the matrix unit 85% busy and 256 rows 93%; where it has to transpose the weights, 60% and 94%.
_ROW_BLOCK = 128
_ROW_BLOCK_TRANSPOSED = 256

_Arrays = tuple[jax.Array, ...]
_Ref: TypeAlias = jax.Array  # is indexed as an array is
_Refs = tuple[_Ref, ...]
_Pairs = tuple[tuple[tuple[int, int], ...], ...]  # for each output, which of lhs and of rhs are multiplied for it


def grouped_matmul(
    lhs_RK: jax.Array,
    rhs: _Arrays,
    group_sizes_E: jax.Array,
    *,
    interpret: bool = False,
    tiling: Tiling | None = None,
) -> _Arrays:
    """out_RN = lhs_RK[r] @ rhs_ENK[the expert of r].T, for each of `rhs` in one pass over the rows.

    Args:
        lhs_RK: rows sorted by expert, bfloat16 or float32.
        rhs: one or more arrays [E, N, K], as `torch.nn.Linear` has its weights, of one shape and of lhs's dtype. They
            are read as they lie, without a transposed copy.
        group_sizes_E: int32, how many rows each expert has. Rows past their sum belong to no expert.
        interpret: run on any platform, slowly.
        tiling: rows (a multiple of 16), K and N (each of 128) of a tile; by default chosen for the shapes.

    Returns:
        out_RN for each of `rhs`, in lhs's dtype, summed in float32; zero in rows of no expert.

    Raises:
        ValueError: the shapes or dtypes do not fit one another.
    """
    outputs = tuple(((0, index),) for index in range(len(rhs)))
    return _multiply_rows((lhs_RK,), rhs, group_sizes_E, outputs, True, tiling, interpret)


def grouped_matmul_input_gradient(
    grads: _Arrays,
    rhs: _Arrays,
    group_sizes_E: jax.Array,
    *,
    interpret: bool = False,
    tiling: Tiling | None = None,
) -> jax.Array:
    """dlhs_RK = the sum over the pairs of grad_RN[r] @ rhs_ENK[the expert of r]: the gradient of `grouped_matmul`
    by its rows.

    Args:
        grads: for each of `rhs` an array [R, N], bfloat16 or float32.
        rhs: arrays [E, N, K] of that dtype.
        group_sizes_E: int32, how many rows each expert has.
        interpret: run on any platform, slowly.
        tiling: rows (a multiple of 16), K and N (each of 128) of a tile; by default chosen for the shapes.

    Returns:
        dlhs_RK in grads' dtype, both products summed in float32; zero in rows of no expert.

    Raises:
        ValueError: the shapes or dtypes do not fit one another.
    """
    outputs = (tuple((index, index) for index in range(len(rhs))),)
    if tiling is not None:
        tiling = (tiling[0], tiling[2], tiling[1])
    (dlhs_RK,) = _multiply_rows(grads, rhs, group_sizes_E, outputs, False, tiling, interpret)
    return dlhs_RK


def grouped_matmul_weight_gradient(
    lhs_RK: jax.Array,
    grads: _Arrays,
    group_sizes_E: jax.Array,
    num_experts: int,
    *,
    interpret: bool = False,
    tiling: Tiling | None = None,
) -> _Arrays:
    """dW_ENK[e] = grad_RN[rows of e].T @ lhs_RK[rows of e], for each of `grads` in one pass over the rows of lhs.

    Args:
        lhs_RK: rows sorted by expert, bfloat16 or float32.
        grads: one or more arrays [R, N] of that dtype.
        group_sizes_E: int32, how many rows each expert has. What is in rows past their sum, even NaN, does not count.
        num_experts: E.
        interpret: run on any platform, slowly.
        tiling: rows (a multiple of 16), K and N (each of 128) of a tile; by default chosen for the shapes.

    Returns:
        dW_ENK for each of `grads`, in lhs's dtype, summed in float32; zero for an expert without rows.

    Raises:
        ValueError: the shapes or dtypes do not fit one another.
    """
    (R, K), N = lhs_RK.shape, grads[0].shape[1]
    _check_all("grads", grads, (R, N), lhs_RK.dtype)
    if group_sizes_E.shape != (num_experts,):
        raise ValueError(f"group sizes of shape {group_sizes_E.shape} for {num_experts} experts")
    shape = jax.ShapeDtypeStruct((num_experts, N, K), lhs_RK.dtype)
    if R == 0:
        return tuple(jnp.zeros_like(shape) for _ in grads)
    itemsize = lhs_RK.dtype.itemsize
    tiling = tiling or weight_tiles(R, K, N, num_experts, grads=len(grads), itemsize=itemsize)
    tile_r, tile_k, tile_n = map(min, tiling, (_packed(R), K, N))
    visits = group_visits(group_sizes_E, R, tile_r, every="expert")

    # Blocks of the grid's (k, n, visit).
    lhs_spec = pl.BlockSpec((tile_r, tile_k), lambda k, n, visit, expert, tile, read, *_: (read[visit], k))
    grad_spec = pl.BlockSpec((tile_r, tile_n), lambda k, n, visit, expert, tile, read, *_: (read[visit], n))
    out_spec = pl.BlockSpec((None, tile_n, tile_k), lambda k, n, visit, expert, *_: (expert[visit], n, k))
    (result,) = pl.pallas_call(
        _weight_gradient_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(visits),
            grid=(pl.cdiv(K, tile_k), pl.cdiv(N, tile_n), visits.tile.shape[0]),
            in_specs=[lhs_spec, (grad_spec,) * len(grads)],
            out_specs=[(out_spec,) * len(grads)],
            scratch_shapes=[(pltpu.VMEM((tile_n, tile_k), jnp.float32),) * len(grads)],
        ),
        out_shape=[(shape,) * len(grads)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * R * K * N * len(grads),
            transcendentals=0,
            bytes_accessed=itemsize * (R * K + len(grads) * (R * N + num_experts * K * N)),
        ),
        interpret=interpret,
        name="grouped_matmul_weight_gradient",
    )(*visits, lhs_RK, grads)
    return result


def _multiply_rows(
    lhs: _Arrays,
    rhs: _Arrays,
    group_sizes_E: jax.Array,
    outputs: _Pairs,
    transpose_rhs: bool,
    tiling: Tiling | None,
    interpret: bool,
) -> _Arrays:
    """out_RW for each of `outputs`: the sum over its pairs (i, j) of lhs[i] @ rhs[j][expert].

    lhs are [R, C], rhs [E, C, W] or, where `transpose_rhs`, [E, W, C]; tiling is rows, C and W.
    """
    (R, C), dtype = lhs[0].shape, lhs[0].dtype
    E, W = rhs[0].shape[0], rhs[0].shape[1 if transpose_rhs else 2]
    _check_all("rows", lhs, (R, C), dtype)
    _check_all("rhs", rhs, (E, W, C) if transpose_rhs else (E, C, W), dtype)
    if group_sizes_E.shape != (E,):
        raise ValueError(f"group sizes of shape {group_sizes_E.shape} for {E} experts")
    shape = jax.ShapeDtypeStruct((R, W), dtype)
    if R == 0:
        return tuple(jnp.zeros_like(shape) for _ in outputs)
    counts = {"lhs": len(lhs), "rhs": len(rhs), "outputs": len(outputs)}
    tiling = tiling or row_tiles(R, C, W, **counts, itemsize=dtype.itemsize)
    tile_r, tile_c, tile_w = map(min, tiling, (_packed(R), C, W))
    steps = pl.cdiv(C, tile_c)
    visits = group_visits(group_sizes_E, R, tile_r, every="tile")

    def part(visit: jax.Array, step: jax.Array, end: _Ref) -> jax.Array:
        """Of the contraction. A visit of no rows stays at the one that is there already, so that none is read."""
        return jnp.where(end[visit] > 0, step, steps - 1)

    # Blocks of the grid's (w, visit, step).
    lhs_spec = pl.BlockSpec(
        (tile_r, tile_c), lambda w, visit, step, expert, tile, read, start, end: (read[visit], part(visit, step, end))
    )
    if transpose_rhs:
        rhs_spec = pl.BlockSpec(
            (None, tile_w, tile_c),
            lambda w, visit, step, expert, tile, read, start, end: (expert[visit], w, part(visit, step, end)),
        )
    else:
        rhs_spec = pl.BlockSpec(
            (None, tile_c, tile_w),
            lambda w, visit, step, expert, tile, read, start, end: (expert[visit], part(visit, step, end), w),
        )
    out_spec = pl.BlockSpec((tile_r, tile_w), lambda w, visit, step, expert, tile, *_: (tile[visit], w))
    sums = (pltpu.VMEM((tile_r, tile_w), jnp.float32),) * len(outputs) if steps > 1 else ()
    (result,) = pl.pallas_call(
        partial(_row_kernel, outputs=outputs, transpose_rhs=transpose_rhs, contraction=C),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(visits),
            grid=(pl.cdiv(W, tile_w), visits.tile.shape[0], steps),
            in_specs=[(lhs_spec,) * len(lhs), (rhs_spec,) * len(rhs)],
            out_specs=[(out_spec,) * len(outputs)],
            scratch_shapes=[sums],
        ),
        out_shape=[(shape,) * len(outputs)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * R * C * W * len(rhs),
            transcendentals=0,
            bytes_accessed=dtype.itemsize * (len(lhs) * R * C + len(rhs) * E * C * W + len(outputs) * R * W),
        ),
        interpret=interpret,
        name="grouped_matmul",
    )(*visits, lhs, rhs)
    return result


def _row_kernel(
    expert_V: _Ref,
    tile_V: _Ref,
    read_V: _Ref,
    start_V: _Ref,
    end_V: _Ref,
    lhs: _Refs,
    rhs: _Refs,
    outs: _Refs,
    sums: _Refs,
    *,
    outputs: _Pairs,
    transpose_rhs: bool,
    contraction: int,
) -> None:
    """One visit and one part of the contraction. `sums` hold float32 sums of the parts, where there are several."""
    visit, step = pl.program_id(1), pl.program_id(2)
    tile_r, tile_c = lhs[0].shape
    steps = pl.cdiv(contraction, tile_c)
    start, end = start_V[visit], end_V[visit]
    block = _ROW_BLOCK_TRANSPOSED if transpose_rhs else _ROW_BLOCK
    if tile_r % block:
        block = tile_r

    @pl.when((step == 0) & _is_first(tile_V, visit))
    def _() -> None:
        for out in outs:
            out[...] = jnp.zeros_like(out)

    def inside(x: jax.Array, dim: int) -> jax.Array:
        # The last block of an uneven contraction reaches past the arrays, where anything may lie.
        if contraction % tile_c == 0:
            return x
        return jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, dim) < contraction - step * tile_c, x, 0)

    def multiply(index: jax.Array, _: None) -> None:
        first = pl.multiple_of(index * block, block)
        rows = pl.ds(first, block)
        for position, (out, pairs) in enumerate(zip(outs, outputs, strict=True)):
            total = None
            for i, j in pairs:
                dims = ((1,), (1 if transpose_rhs else 0,))
                product = _dot(inside(lhs[i][rows, :], 1), inside(rhs[j][...], dims[1][0]), dims)
                total = product if total is None else total + product
            if steps > 1:
                total += jnp.where(step == 0, 0, sums[position][rows, :])
                sums[position][rows, :] = total

            @pl.when(step == steps - 1)
            def _(out: _Ref = out, total: jax.Array = total) -> None:
                row = first + lax.broadcasted_iota(jnp.int32, total.shape, 0)
                # Selected rather than multiplied: what other rows hold may be NaN.
                mine = (row >= start) & (row < end)
                out[rows, :] = jnp.where(mine, total, out[rows, :].astype(jnp.float32)).astype(out.dtype)

    lax.fori_loop(start // block, pl.cdiv(end, block), multiply, None)


def _weight_gradient_kernel(
    expert_V: _Ref,
    tile_V: _Ref,
    read_V: _Ref,
    start_V: _Ref,
    end_V: _Ref,
    lhs: _Ref,
    grads: _Refs,
    outs: _Refs,
    sums: _Refs,
) -> None:
    """One visit: its rows' part of a block of the expert's gradient."""
    visit = pl.program_id(2)
    start, end = start_V[visit], end_V[visit]

    def mine(x: jax.Array) -> jax.Array:
        row = lax.broadcasted_iota(jnp.int32, x.shape, 0)
        return jnp.where((row >= start) & (row < end), x, 0)

    is_first = _is_first(expert_V, visit)

    @pl.when(is_first & (end == 0))
    def _() -> None:
        for total in sums:
            total[...] = jnp.zeros_like(total)

    @pl.when(end > 0)
    def _() -> None:
        rows = mine(lhs[...])
        for total, grad in zip(sums, grads, strict=True):
            total[...] = jnp.where(is_first, 0, total[...]) + _dot(mine(grad[...]), rows, ((0,), (0,)))

    @pl.when(_is_last(expert_V, visit))
    def _() -> None:
        for total, out in zip(sums, outs, strict=True):
            out[...] = total[...].astype(out.dtype)


def _is_first(index_V: _Ref, visit: jax.Array) -> jax.Array:
    """Whether a visit is the first of those in a row that have its index."""
    return (visit == 0) | (index_V[visit] != index_V[jnp.maximum(visit - 1, 0)])


def _is_last(index_V: _Ref, visit: jax.Array) -> jax.Array:
    last = index_V.shape[0] - 1
    return (visit == last) | (index_V[visit] != index_V[jnp.minimum(visit + 1, last)])


def _dot(x: jax.Array, y: jax.Array, dims: tuple[tuple[int], tuple[int]]) -> jax.Array:
    precision = matmul_precision(x.dtype)
    return lax.dot_general(x, y, (dims, ((), ())), precision=precision, preferred_element_type=jnp.float32)


def _packed(rows: int) -> int:
    """Up to what is a whole number of registers in any dtype."""
    return pl.cdiv(rows, 16) * 16


def _check_all(name: str, arrays: _Arrays, shape: tuple[int, ...], dtype: jnp.dtype) -> None:
    for array in arrays:
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"{name} of {array.dtype}{list(array.shape)}: expected {dtype}{list(shape)}")
