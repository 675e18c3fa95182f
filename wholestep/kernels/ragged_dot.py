"""Matmuls of a mixture of experts with JAX's own operators, for any platform: what the kernels of
`wholestep.kernels.grouped_matmul_tpu` compute, function by function.

R rows, K contraction width, N output width, E experts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from wholestep.kernels.group_visits import GroupVisits, group_visits

_Arrays = tuple[jax.Array, ...]

_TILE = 512  # rows of a step of the weight gradient


def grouped_matmul(lhs_RK: jax.Array, rhs: _Arrays, group_sizes_E: jax.Array) -> _Arrays:
    """out_RN = lhs_RK[r] @ rhs_ENK[the expert of r].T for each of `rhs`.

    In lhs's dtype, summed in float32; zero in rows past the sum of `group_sizes_E`.
    """
    return tuple(_multiply_rows(((lhs_RK, each),), group_sizes_E, True) for each in rhs)


def grouped_matmul_input_gradient(grads: _Arrays, rhs: _Arrays, group_sizes_E: jax.Array) -> jax.Array:
    """dlhs_RK = the sum over the pairs of grad_RN[r] @ rhs_ENK[the expert of r].

    In grads' dtype, summed in float32; zero in rows past the sum of `group_sizes_E`.
    """
    return _multiply_rows(tuple(zip(grads, rhs, strict=True)), group_sizes_E, False)


def grouped_matmul_weight_gradient(
    lhs_RK: jax.Array, grads: _Arrays, group_sizes_E: jax.Array, num_experts: int
) -> _Arrays:
    """dW_ENK[e] = grad_RN[rows of e].T @ lhs_RK[rows of e] for each of `grads`.

    In lhs's dtype, summed in float32; zero for an expert without rows. Rows past the sum of `group_sizes_E` do not
    count, whatever they hold.
    """
    # Not by `lax.ragged_dot_general`, though it has this case: CPU and TPU (libtpu 0.0.42) both turn it into the dense
    # product of every row with every expert, E times the work. A loop over tiles of rows costs what the rows cost.
    (R, K), N, dtype = lhs_RK.shape, grads[0].shape[1], lhs_RK.dtype
    if R == 0:
        return tuple(jnp.zeros((num_experts, N, K), dtype) for _ in grads)
    tile = min(_TILE, R)
    visits = group_visits(group_sizes_E, R, tile, every="expert")

    def visit(
        carry: tuple[jax.Array, _Arrays, _Arrays], at: GroupVisits
    ) -> tuple[tuple[jax.Array, _Arrays, _Arrays], None]:
        previous, sums, gradients = carry
        tile_start = at.tile * tile
        slice_start = jnp.minimum(tile_start, R - tile)  # the last tile may reach past the rows, a slice may not
        row = slice_start + jnp.arange(tile)[:, None]
        mine = (row >= tile_start + at.start) & (row < tile_start + at.end)

        def rows_of(x: jax.Array) -> jax.Array:
            return jnp.where(mine, lax.dynamic_slice_in_dim(x, slice_start, tile), 0)

        products = [_dot(rows_of(grad), rows_of(lhs_RK)) for grad in grads]
        sums = tuple(
            jnp.where(at.expert == previous, total, 0) + each for total, each in zip(sums, products, strict=True)
        )
        gradients = tuple(
            lax.dynamic_update_index_in_dim(gradient, total.astype(dtype), at.expert, 0)
            for gradient, total in zip(gradients, sums, strict=True)
        )
        return (at.expert, sums, gradients), None

    sums = tuple(jnp.zeros((N, K), jnp.float32) for _ in grads)
    gradients = tuple(jnp.zeros((num_experts, N, K), dtype) for _ in grads)
    (_, _, gradients), _ = lax.scan(visit, (jnp.int32(-1), sums, gradients), visits)
    return gradients


def matmul_precision(dtype: jnp.dtype) -> lax.Precision:
    """Float32 is multiplied as float32, which a TPU's matrix unit does not do by itself."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT


def _multiply_rows(pairs: tuple[_Arrays, ...], group_sizes_E: jax.Array, transpose_rhs: bool) -> jax.Array:
    # The TPU compiler has a kernel of its own for this, which works as much as the rows need. On a CPU it is the dense
    # product of every row with every expert, and each expert has a copy of the rows: for small models only.
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (2 if transpose_rhs else 1,)), ((), ())),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[0],
    )
    total = sum(
        lax.ragged_dot_general(
            lhs,
            rhs,
            group_sizes_E,
            numbers,
            precision=matmul_precision(lhs.dtype),
            preferred_element_type=jnp.float32,
        )
        for lhs, rhs in pairs
    )
    # What it gives for rows of no group is documented nowhere.
    owned = jnp.arange(total.shape[0])[:, None] < jnp.sum(group_sizes_E)
    return jnp.where(owned, total, 0).astype(pairs[0][0].dtype)


def _dot(grad_RN: jax.Array, lhs_RK: jax.Array) -> jax.Array:
    dims = (((0,), (0,)), ((), ()))
    return lax.dot_general(
        grad_RN, lhs_RK, dims, precision=matmul_precision(lhs_RK.dtype), preferred_element_type=jnp.float32
    )
