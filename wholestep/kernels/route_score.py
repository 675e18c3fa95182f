"""The hidden values of experts, weighted by the router's scores, with a gradient that reads its inputs as they are.

Written out in PyTorch, the products in fp32 make autograd keep fp32 copies of gate and up projection, the largest
activations of a layer after the rows themselves. Here they are kept in their own dtype, and each pass reads them once
and converts on the way, which XLA does in one fusion.

Suffixes: R rows sorted by expert, F an expert's hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from torch import Tensor, nn

from wholestep.models.layers.mixture import RouteScore
from wholestep.xla.jax_op import jax_op


class FusedRouteScore(nn.Module):
    """`RouteScore` without fp32 copies of its inputs."""

    @dataclass(frozen=True, kw_only=True)
    class Config(RouteScore, name="route_score"):
        """Computes in fp32, forward and backward."""

        def build(self) -> FusedRouteScore:
            return FusedRouteScore()

    def forward(self, gate_RF: Tensor, up_RF: Tensor, scores_R: Tensor) -> Tensor:
        return route_score(gate_RF, up_RF, scores_R)


Arrays = tuple[jax.Array, jax.Array, jax.Array]


def _hidden(gate_RF: jax.Array, up_RF: jax.Array) -> jax.Array:
    return jax.nn.silu(gate_RF.astype(jnp.float32)) * up_RF.astype(jnp.float32)


def _forward(gate_RF: jax.Array, up_RF: jax.Array, scores_R: jax.Array) -> tuple[jax.Array, Arrays]:
    out_RF = (_hidden(gate_RF, up_RF) * scores_R[:, None]).astype(gate_RF.dtype)
    return out_RF, (gate_RF, up_RF, scores_R)


def _backward(residuals: Arrays, grad_RF: jax.Array) -> Arrays:
    gate_RF, up_RF, scores_R = residuals
    hidden_RF, of_inputs = jax.vjp(_hidden, gate_RF, up_RF)
    grad_RF = grad_RF.astype(jnp.float32)
    other_axes = [axis for axis in range(grad_RF.ndim) if axis != grad_RF.ndim - 2]
    of_scores_R = (hidden_RF * grad_RF).sum(other_axes).astype(scores_R.dtype)
    return *of_inputs(grad_RF * scores_R[:, None]), of_scores_R


@jax_op("wholestep::route_score", forward=_forward, backward=_backward)
def route_score(gate_RF: jax.Array, up_RF: jax.Array, scores_R: jax.Array) -> jax.Array:
    """hidden_RF in gate's dtype; scores are fp32. Dimensions before R are allowed, of gate and up."""
    return _forward(gate_RF, up_RF, scores_R)[0]
