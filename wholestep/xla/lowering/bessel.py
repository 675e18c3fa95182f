"""Bessel and Airy functions, of real arguments.

Away from zero, all of them are one integral, the modified Bessel function of the second kind on the real and on the
imaginary axis (DLMF 10.32.8, 10.27.8, 9.6.2, 9.6.5), which the trapezoidal rule takes to the last bit of fp32 in a few
steps; near zero, their power series (DLMF 10.8, 10.31, 9.4).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import torch

from wholestep.xla.lowering.registry import elementwise

aten = torch.ops.aten

# The integrand falls off as exp(-u^2) and has no pole within 1 of the real axis for arguments of 1 and more.
_STEP = 0.25
_NODES = _STEP * np.arange(19)
_WEIGHTS = _STEP * np.exp(-(_NODES**2)) * np.where(_NODES == 0, 0.5, 1)

_TERMS = np.arange(8)


def decaying(order: float, z: jax.Array) -> jax.Array:
    """exp(z) K_order(z) for |z| >= 1, Re z >= 0; `order` is 0, 1 or a fraction."""
    nodes, weights = _NODES.astype(np.float32), _WEIGHTS.astype(np.float32)
    ratio = nodes**2 / z[..., None]
    if order in (0, 1):
        hyperbolic = 1 + order * ratio
    else:
        half = nodes / jnp.sqrt(2 * z)[..., None]
        root = (half + jnp.sqrt(1 + half**2)) ** (2 * order)
        hyperbolic = (root + 1 / root) / 2
    return jnp.sqrt(2 / z) * jnp.sum(weights * hyperbolic / jnp.sqrt(1 + ratio / 2), -1)


def _outgoing(order: float, x: jax.Array) -> jax.Array:
    """Hankel's function of the first kind, J + iY, for x >= 1."""
    turn = np.complex64(-1j * np.exp(-0.5j * np.pi * order) * 2 / np.pi)
    return turn * jax.lax.complex(jnp.cos(x), jnp.sin(x)) * decaying(order, jax.lax.complex(jnp.zeros_like(x), -x))


def _series(order: int, square: jax.Array, logarithmic: bool) -> jax.Array:
    """The power series that multiplies (x / 2)^order, in square = (x / 2)^2: of the function, or of the part of the
    second kind that comes beside the logarithm."""
    digamma = scipy.special.digamma
    factors = digamma(_TERMS + 1) + digamma(_TERMS + order + 1) if logarithmic else np.ones(len(_TERMS))
    coefficients = factors / (scipy.special.factorial(_TERMS) * scipy.special.factorial(_TERMS + order))
    return jnp.polyval(coefficients[::-1].astype(np.float32), square)


def _first_kind(order: int, x: jax.Array) -> jax.Array:
    size = jnp.abs(x)
    small = (size / 2) ** order * _series(order, -((size / 2) ** 2), False)
    value = jnp.where(size < 1, small, _outgoing(order, jnp.maximum(size, 1)).real)
    return value if order == 0 else jnp.copysign(1, x) * value


def _second_kind(order: int, x: jax.Array) -> jax.Array:
    half = x / 2
    first, beside = (_series(order, -(half**2), logarithmic) for logarithmic in (False, True))
    small = half**order * (2 * jnp.log(half) * first - beside) / math.pi - (2 / (math.pi * x) if order else 0)
    value = jnp.where(x < 1, small, _outgoing(order, jnp.maximum(x, 1)).imag)
    return jnp.where(x == 0, -jnp.inf, value)


def _modified_second_kind(order: int, x: jax.Array, scaled: bool) -> jax.Array:
    half = x / 2
    first, beside = (_series(order, half**2, logarithmic) for logarithmic in (False, True))
    sign = -1 if order == 0 else 1
    small = sign * half**order * (jnp.log(half) * first - beside / 2) + (1 / x if order else 0)
    large = decaying(order, jnp.maximum(x, 1))
    value = jnp.where(x < 1, small * jnp.exp(x), large) if scaled else jnp.where(x < 1, small, jnp.exp(-x) * large)
    return jnp.where(x == 0, jnp.inf, value)


@elementwise(aten.special_bessel_j0.default)
def bessel_j0(x: jax.Array) -> jax.Array:
    return _first_kind(0, x)


@elementwise(aten.special_bessel_j1.default)
def bessel_j1(x: jax.Array) -> jax.Array:
    return _first_kind(1, x)


@elementwise(aten.special_bessel_y0.default)
def bessel_y0(x: jax.Array) -> jax.Array:
    return _second_kind(0, x)


@elementwise(aten.special_bessel_y1.default)
def bessel_y1(x: jax.Array) -> jax.Array:
    return _second_kind(1, x)


@elementwise(aten.special_modified_bessel_k0.default)
def modified_bessel_k0(x: jax.Array) -> jax.Array:
    return _modified_second_kind(0, x, scaled=False)


@elementwise(aten.special_modified_bessel_k1.default)
def modified_bessel_k1(x: jax.Array) -> jax.Array:
    return _modified_second_kind(1, x, scaled=False)


@elementwise(aten.special_scaled_modified_bessel_k0.default)
def scaled_modified_bessel_k0(x: jax.Array) -> jax.Array:
    return _modified_second_kind(0, x, scaled=True)


@elementwise(aten.special_scaled_modified_bessel_k1.default)
def scaled_modified_bessel_k1(x: jax.Array) -> jax.Array:
    return _modified_second_kind(1, x, scaled=True)


@elementwise(aten.special_airy_ai.default)
def airy_ai(x: jax.Array) -> jax.Array:
    size = jnp.maximum(jnp.abs(x), 1.4)
    argument = size * jnp.sqrt(size) * (2 / 3)  # at least 1
    decay = jnp.sqrt(size / 3) / math.pi * jnp.exp(-argument) * decaying(1 / 3, argument)
    # Oscillating: sqrt(size / 3) times the real part of exp(i pi / 6) H_1/3.
    wave = jnp.sqrt(size / 3) * (np.complex64(np.exp(1j * np.pi / 6)) * _outgoing(1 / 3, argument)).real
    steps = 3.0 * _TERMS
    even = np.cumprod([1, *(1 / ((steps[1:] - 1) * steps[1:]))])
    odd = np.cumprod([1, *(1 / (steps[1:] * (steps[1:] + 1)))])
    at_zero, slope = scipy.special.airy(0.0)[:2]
    cube = x**3
    small = jnp.polyval((at_zero * even[::-1]).astype(np.float32), cube)
    small += x * jnp.polyval((slope * odd[::-1]).astype(np.float32), cube)
    return jnp.where(jnp.abs(x) < 1.4, small, jnp.where(x > 0, decay, wave))
