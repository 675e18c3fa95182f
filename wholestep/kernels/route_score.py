"""The weighted sum of a token's experts' outputs, with a gradient that reads them as they are.

Written out in PyTorch, the products in fp32 make autograd keep the experts' outputs in fp32, the largest activation of
a layer twice over. Here they are kept in their own dtype, and each pass reads them once and converts on the way, which
XLA does in one fusion.

Suffixes: T tokens, C experts that a token chose, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from torch import Tensor, nn

from wholestep.models.layers.mixture import RouteScore
from wholestep.xla.jax_op import jax_op


class FusedRouteScore(nn.Module):
    """`RouteScore` without an fp32 copy of the experts' outputs."""

    @dataclass(frozen=True, kw_only=True)
    class Config(RouteScore, name="route_score"):
        """Sums in fp32, forward and backward."""

        def build(self) -> FusedRouteScore:
            return FusedRouteScore()

    def forward(self, rows_TCD: Tensor, scores_TC: Tensor) -> Tensor:
        return route_score(rows_TCD, scores_TC)


def _forward(rows_TCD: jax.Array, scores_TC: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    out_TD = (rows_TCD.astype(jnp.float32) * scores_TC[:, :, None]).sum(1).astype(rows_TCD.dtype)
    return out_TD, (rows_TCD, scores_TC)


def _backward(residuals: tuple[jax.Array, jax.Array], grad_TD: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows_TCD, scores_TC = residuals
    grad_T1D = grad_TD.astype(jnp.float32)[:, None]
    of_scores_TC = (rows_TCD.astype(jnp.float32) * grad_T1D).sum(-1).astype(scores_TC.dtype)
    return (grad_T1D * scores_TC[:, :, None]).astype(rows_TCD.dtype), of_scores_TC


@jax_op("wholestep::route_score", forward=_forward, backward=_backward)
def route_score(rows_TCD: jax.Array, scores_TC: jax.Array) -> jax.Array:
    """out_TD in the rows' dtype; scores are fp32."""
    return _forward(rows_TCD, scores_TC)[0]
