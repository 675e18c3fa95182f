"""The experts of a mixture by grouped matmuls: each row by its own expert's weights alone.

Two nodes: `grouped_matmul`, Pallas kernels for TPU (`wholestep.kernels.grouped_matmul_tpu`), and `ragged_dot`, JAX's
own operators for any platform (`wholestep.kernels.ragged_dot`). Both take the gate and the up projection as a pair, and
group sizes as data: other routing never compiles again.

Suffixes: R rows sorted by expert, D model width, F an expert's hidden width, E experts, K contraction, N output width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from torch import Tensor, nn

from wholestep.graph.policies import WEIGHT_PRODUCTS
from wholestep.kernels import grouped_matmul_tpu, ragged_dot
from wholestep.models.layers.mixture import ExpertFeedForward
from wholestep.xla.jax_op import JaxOp, jax_op


class GroupedExperts(nn.Module):
    """All experts' SwiGLUs by three grouped matmuls, two of them a pair."""

    @dataclass(frozen=True, kw_only=True)
    class Kernel(ExpertFeedForward, name="grouped_matmul"):
        """On TPU: a block of an expert's weights stays in fast memory while its rows pass by. Elsewhere it is
        interpreted, which is slow."""

        def build(self, route_score: nn.Module) -> GroupedExperts:
            return GroupedExperts(grouped_matmul, route_score)

    @dataclass(frozen=True, kw_only=True)
    class Plain(ExpertFeedForward, name="ragged_dot"):
        """On TPU by an instruction of the compiler; on a CPU each row meets every expert, as in `every_expert`, but
        only one expert's results are in memory."""

        def build(self, route_score: nn.Module) -> GroupedExperts:
            return GroupedExperts(ragged_matmul, route_score)

    def __init__(self, matmul: JaxOp, route_score: nn.Module) -> None:
        super().__init__()
        self.matmul = matmul
        self.route_score = route_score

    def forward(
        self,
        x_RD: Tensor,
        scores_R: Tensor,
        group_sizes_E: Tensor,
        gate_EFD: Tensor,
        up_EFD: Tensor,
        down_EDF: Tensor,
    ) -> Tensor:
        gate_RF, up_RF = self.matmul(x_RD, [gate_EFD, up_EFD], group_sizes_E)
        (out_RD,) = self.matmul(self.route_score(gate_RF, up_RF, scores_R), [down_EDF], group_sizes_E)
        return out_RD


def _flops(lhs_RK: Any, rhs: Sequence[Any], group_sizes_E: Any) -> int:
    return 2 * lhs_RK.shape[0] * lhs_RK.shape[1] * rhs[0].shape[1] * len(rhs)


def _forward(lhs_RK: jax.Array, rhs: Sequence[jax.Array], group_sizes_E: jax.Array, *, interpret: bool) -> Any:
    outs = grouped_matmul_tpu.grouped_matmul(lhs_RK, tuple(rhs), group_sizes_E, interpret=interpret)
    return list(outs), (lhs_RK, tuple(rhs), group_sizes_E)


def _backward(residuals: Any, grads: list[jax.Array], *, interpret: bool) -> Any:
    lhs_RK, rhs, group_sizes_E = residuals
    pair, experts = tuple(grads), rhs[0].shape[0]
    of_lhs = grouped_matmul_tpu.grouped_matmul_input_gradient(pair, rhs, group_sizes_E, interpret=interpret)
    of_rhs = grouped_matmul_tpu.grouped_matmul_weight_gradient(
        lhs_RK, pair, group_sizes_E, experts, interpret=interpret
    )
    return of_lhs, of_rhs, None


@jax_op("wholestep::grouped_matmul", forward=_forward, backward=_backward, flops=_flops)
def grouped_matmul(
    lhs_RK: jax.Array, rhs: Sequence[jax.Array], group_sizes_E: jax.Array, *, interpret: bool
) -> list[jax.Array]:
    """out_RN for each of `rhs` [E, N, K], in lhs's dtype; zeros in rows past the sum of `group_sizes_E` (int32)."""
    return _forward(lhs_RK, rhs, group_sizes_E, interpret=interpret)[0]


def _ragged_forward(lhs_RK: jax.Array, rhs: Sequence[jax.Array], group_sizes_E: jax.Array) -> Any:
    return list(ragged_dot.grouped_matmul(lhs_RK, tuple(rhs), group_sizes_E)), (lhs_RK, tuple(rhs), group_sizes_E)


def _ragged_backward(residuals: Any, grads: list[jax.Array]) -> Any:
    lhs_RK, rhs, group_sizes_E = residuals
    of_lhs = ragged_dot.grouped_matmul_input_gradient(tuple(grads), rhs, group_sizes_E)
    return of_lhs, ragged_dot.grouped_matmul_weight_gradient(lhs_RK, tuple(grads), group_sizes_E, rhs[0].shape[0]), None


@jax_op("wholestep::ragged_matmul", forward=_ragged_forward, backward=_ragged_backward, flops=_flops)
def ragged_matmul(lhs_RK: jax.Array, rhs: Sequence[jax.Array], group_sizes_E: jax.Array) -> list[jax.Array]:
    """The same as `grouped_matmul` by JAX's operators."""
    return _ragged_forward(lhs_RK, rhs, group_sizes_E)[0]


WEIGHT_PRODUCTS.update((grouped_matmul.forward_overload, ragged_matmul.forward_overload))
