"""Margin losses over classes, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch

from wholestep.xla.lowering.registry import lowers

aten = torch.ops.aten

_REDUCTIONS: tuple[Callable[[jax.Array], jax.Array], ...] = (lambda x: x, jnp.mean, jnp.sum)


@lowers(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(grad: jax.Array, x: jax.Array, target: jax.Array, reduction: int) -> jax.Array:
    """Not PyTorch's decomposition: that subtracts 1 from a sigmoid, in which digits cancel."""
    share = grad / x.size if reduction == 1 else grad
    return (-target * jax.nn.sigmoid(-target * x) * share).astype(x.dtype)


@lowers(aten.multi_margin_loss.default)
def multi_margin_loss(
    x: jax.Array,
    target: jax.Array,
    p: float = 1,
    margin: float = 1,
    weight: jax.Array | None = None,
    reduction: int = 1,
) -> jax.Array:
    rows, labels = jnp.atleast_2d(x.astype(jnp.float32)), jnp.atleast_1d(target)
    own = labels[:, None] == jnp.arange(rows.shape[1])
    excess = margin - jnp.sum(jnp.where(own, rows, 0), 1, keepdims=True) + rows
    terms = jnp.where((excess > 0) & ~own, excess, 0)  # not `maximum`, whose gradient at 0 is not PyTorch's
    terms = terms if p == 1 else terms * terms
    if weight is not None:
        terms *= jnp.take(weight, labels, mode="clip").astype(jnp.float32)[:, None]
    return _reduced(jnp.sum(terms, 1) / max(rows.shape[1], 1), reduction, x, target.ndim)


@lowers(aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(
    grad: jax.Array,
    x: jax.Array,
    target: jax.Array,
    p: float,
    margin: float,
    weight: jax.Array | None = None,
    reduction: int = 1,
) -> jax.Array:
    return jax.vjp(lambda x: multi_margin_loss(x, target, p, margin, weight, reduction), x)[1](grad)[0]


@lowers(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(x: jax.Array, target: jax.Array, reduction: int) -> list[jax.Array]:
    """The loss, and which classes are a row's labels. (PyTorch's decomposition counts labels after the first -1.)"""
    own = jnp.any(_labelled(target, x.shape[-1] if x.ndim else 1), 1)
    return [_multilabel_margin_loss(x, target, reduction), own.reshape(target.shape).astype(x.dtype)]


@lowers(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(
    grad: jax.Array, x: jax.Array, target: jax.Array, reduction: int, is_target: jax.Array
) -> jax.Array:
    return jax.vjp(lambda x: _multilabel_margin_loss(x, target, reduction), x)[1](grad)[0]


def _multilabel_margin_loss(x: jax.Array, target: jax.Array, reduction: int) -> jax.Array:
    rows, labels = jnp.atleast_2d(x.astype(jnp.float32)), jnp.atleast_2d(target)
    classes = rows.shape[1]
    given, own = _given(labels), jnp.any(_labelled(target, classes), 1)
    picked = jnp.take_along_axis(rows, jnp.maximum(labels, 0), 1)
    excess = 1 - picked[:, :, None] + rows[:, None, :]
    terms = jnp.where(given[:, :, None] & ~own[:, None, :] & (excess > 0), excess, 0)
    return _reduced(jnp.sum(terms, (1, 2)) / max(classes, 1), reduction, x, max(target.ndim - 1, 0))


def _given(labels: jax.Array) -> jax.Array:
    """A row's labels end at its first -1."""
    return jnp.cumprod((labels >= 0).astype(jnp.int32), 1) > 0


def _labelled(target: jax.Array, classes: int) -> jax.Array:
    """Whether a label is a class, `[rows, labels, classes]`."""
    labels = jnp.atleast_2d(target)
    return (labels[:, :, None] == jnp.arange(classes)) & _given(labels)[:, :, None]


def _reduced(losses: jax.Array, reduction: int, x: jax.Array, ndim: int) -> jax.Array:
    """Of the losses of rows; a single row, which has no dimension for rows, has a single loss."""
    return _REDUCTIONS[reduction](losses if ndim else losses[0]).astype(x.dtype)
