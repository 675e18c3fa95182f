"""A custom kernel from nothing to a trained model: RMS normalization in Pallas. docs/custom-kernels.md explains it.

python examples/custom_kernel.py
"""

import sys
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from rich.console import Console

from wholestep import jax_op
from wholestep.models.layers.norm import RMSNorm
from wholestep.train.launch import Options, launch

ROWS = 8  # in a block


def formula(x, weight, eps):
    x_fp32 = x.astype(jnp.float32)
    return (x_fp32 * jax.lax.rsqrt((x_fp32**2).mean(-1, keepdims=True) + eps)).astype(x.dtype) * weight


def kernel(x_ref, weight_ref, out_ref, *, eps):
    out_ref[...] = formula(x_ref[...], weight_ref[...], eps)


def forward(x, weight, eps, *, interpret):
    rows, width = x.reshape(-1, x.shape[-1]), x.shape[-1]
    missing = -len(rows) % ROWS
    out = pl.pallas_call(
        partial(kernel, eps=eps),
        jax.ShapeDtypeStruct((len(rows) + missing, width), x.dtype),
        grid=((len(rows) + missing) // ROWS,),
        in_specs=[pl.BlockSpec((ROWS, width), lambda i: (i, 0)), pl.BlockSpec((1, width), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((ROWS, width), lambda i: (i, 0)),
        interpret=interpret,
    )(jnp.pad(rows, ((0, missing), (0, 0))), weight[None])
    return out[: len(rows)].reshape(x.shape), (x, weight)


def backward(residuals, grad, eps, *, interpret):
    return jax.vjp(partial(formula, eps=eps), *residuals)[1](grad)


@jax_op("example::rms_norm", forward=forward, backward=backward)
def rms_norm(x: jax.Array, weight: jax.Array, eps: float, *, interpret: bool) -> jax.Array:
    return forward(x, weight, eps, interpret=interpret)[0]


class PallasNorm(RMSNorm):
    @dataclass(frozen=True, kw_only=True)
    class Config(RMSNorm.Config, name="pallas"):
        def build(self, *, dim):
            return PallasNorm(self, dim)

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


if __name__ == "__main__":
    turned_on = ["model.layers.*.attention_norm=pallas", "model.layers.*.feed_forward_norm=pallas", "model.norm=pallas"]
    launch(Options(recipe="llama3_debug", overrides=(*turned_on, *sys.argv[1:]), steps=20), Console(stderr=True))
