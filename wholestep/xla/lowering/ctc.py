"""Connectionist temporal classification: the forward recursion as a loop over time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from wholestep.graph.ctc import ctc_loss, ctc_loss_backward
from wholestep.xla.lowering.registry import lowers

_NEVER = -1e30  # log of the probability of what cannot be; finite, so that its gradient is 0 and not NaN


@lowers(ctc_loss._opoverload)
def lower_ctc_loss(
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    blank: int,
    zero_infinity: bool,
) -> jax.Array:
    loss = _losses(log_probs.astype(jnp.float32), targets, input_lengths, target_lengths, blank)
    impossible = 0 if zero_infinity else jnp.inf
    return jnp.where(loss > -_NEVER / 2, impossible, loss).astype(log_probs.dtype)


@lowers(ctc_loss_backward._opoverload)
def lower_ctc_loss_backward(
    grad: jax.Array,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    blank: int,
    zero_infinity: bool,
) -> jax.Array:
    """Of what a log-softmax made `log_probs` from, as PyTorch's: the probabilities are part of it."""
    wide = log_probs.astype(jnp.float32)
    loss, backward = jax.vjp(lambda x: _losses(x, targets, input_lengths, target_lengths, blank), wide)
    (occupied,) = backward(jnp.ones_like(loss))
    within = jnp.arange(len(log_probs))[:, None] < input_lengths
    result = jnp.where(within[..., None], (jnp.exp(wide) + occupied) * grad.astype(jnp.float32)[:, None], 0)
    impossible = 0 if zero_infinity else jnp.nan
    never = (loss > -_NEVER / 2) & within
    return jnp.where(never[..., None], impossible, result).astype(log_probs.dtype)


def _losses(
    log_probs: jax.Array, targets: jax.Array, input_lengths: jax.Array, target_lengths: jax.Array, blank: int
) -> jax.Array:
    """float32[N]: minus the log probability of each target, as large as `-_NEVER` where it is 0."""
    input_lengths, target_lengths = jnp.atleast_1d(input_lengths), jnp.atleast_1d(target_lengths)
    if targets.ndim == 1:  # all in one row, one after the other
        starts = jnp.cumsum(target_lengths) - target_lengths
        places = starts[:, None] + jnp.arange(len(targets))
        targets = jnp.take(targets, places, mode="clip")
    batch, longest = targets.shape
    labels = jnp.full((batch, 2 * longest + 1), blank, targets.dtype).at[:, 1::2].set(targets)
    before = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=blank)[:, :-2]
    may_skip = (labels != blank) & (labels != before)
    emitted = jnp.take_along_axis(jnp.swapaxes(log_probs, 0, 1), labels[:, None], 2)  # [N, T, labels]
    emitted = jnp.swapaxes(emitted, 0, 1)
    state = jnp.arange(labels.shape[1])
    first = jnp.where((state == 0) | ((state == 1) & (target_lengths > 0)[:, None]), emitted[0], _NEVER)

    def step(alpha: jax.Array, given: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        time, emission = given
        one = jnp.pad(alpha, ((0, 0), (1, 0)), constant_values=_NEVER)[:, :-1]
        two = jnp.pad(alpha, ((0, 0), (2, 0)), constant_values=_NEVER)[:, :-2]
        ways = jnp.stack([alpha, one, jnp.where(may_skip, two, _NEVER)])
        moved = jnp.maximum(jax.nn.logsumexp(ways, 0) + emission, _NEVER)
        return jnp.where((time < input_lengths)[:, None], moved, alpha), None

    alpha, _ = lax.scan(step, first, (jnp.arange(1, len(emitted)), emitted[1:]))
    ends = jnp.stack([2 * target_lengths, jnp.maximum(2 * target_lengths - 1, 0)], 1)
    reached = jnp.take_along_axis(alpha, ends, 1)
    reached = reached.at[:, 1].set(jnp.where(target_lengths > 0, reached[:, 1], _NEVER))
    without_input = jnp.where(target_lengths == 0, 0.0, -_NEVER)
    return jnp.where(input_lengths == 0, without_input, -jax.nn.logsumexp(reached, 1))
