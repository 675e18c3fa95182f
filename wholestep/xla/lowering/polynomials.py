"""Orthogonal polynomials: degree and argument differ from element to element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from wholestep.xla.lowering.registry import elementwise

aten = torch.ops.aten

Step = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
"""`(n, x, value of degree n, value of degree n - 1) -> value of degree n + 1`."""


def _chebyshev(n: jax.Array, x: jax.Array, value: jax.Array, before: jax.Array) -> jax.Array:
    return 2 * x * value - before


def _hermite(n: jax.Array, x: jax.Array, value: jax.Array, before: jax.Array) -> jax.Array:
    return 2 * (x * value - n * before)


def _hermite_of_probability(n: jax.Array, x: jax.Array, value: jax.Array, before: jax.Array) -> jax.Array:
    return x * value - n * before


def _laguerre(n: jax.Array, x: jax.Array, value: jax.Array, before: jax.Array) -> jax.Array:
    return ((2 * n + 1 - x) * value - n * before) / (n + 1)


def _legendre(n: jax.Array, x: jax.Array, value: jax.Array, before: jax.Array) -> jax.Array:
    return ((2 * n + 1) * x * value - n * before) / (n + 1)


_KINDS: dict[str, tuple[Callable[[Any], Any], Step]] = {
    "chebyshev_polynomial_t": (lambda x: x, _chebyshev),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _chebyshev),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _chebyshev),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _chebyshev),
    "hermite_polynomial_h": (lambda x: 2 * x, _hermite),
    "hermite_polynomial_he": (lambda x: x, _hermite_of_probability),
    "laguerre_polynomial_l": (lambda x: 1 - x, _laguerre),
    "legendre_polynomial_p": (lambda x: x, _legendre),
}


def _polynomial(x: Any, degree: Any, linear: Callable[[Any], Any], step: Step) -> jax.Array:
    """By the recurrence, up to the highest degree of any element; 0 of a negative degree, as PyTorch's."""
    x, degree = jnp.broadcast_arrays(x, jnp.trunc(degree))
    ones = jnp.ones_like(x)
    result = jnp.where(degree == 0, 1, jnp.where(degree == 1, linear(x), 0))

    def more(carry: tuple[jax.Array, ...]) -> jax.Array:
        return jnp.any(degree > carry[0])

    def next_degree(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        n, value, before, result = carry
        following = step(n, x, value, before)
        return n + 1, following, value, jnp.where(degree == n + 1, following, result)

    return lax.while_loop(more, next_degree, (jnp.ones((), x.dtype), linear(x), ones, result))[-1]


def _register(name: str, linear: Callable[[Any], Any], step: Step, shifted: bool = False) -> None:
    packet = getattr(aten, name)

    @elementwise(packet.default, packet.x_scalar, packet.n_scalar)
    def lowering(x: Any, degree: Any) -> jax.Array:
        return _polynomial(2 * x - 1 if shifted else x, degree, linear, step)


for name, (linear, step) in _KINDS.items():
    _register(f"special_{name}", linear, step)
    if step is _chebyshev:
        _register(f"special_shifted_{name}", linear, step, shifted=True)
