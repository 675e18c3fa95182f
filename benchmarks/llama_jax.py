"""Llama 3's training step written by hand in plain JAX: what `step_time.py` holds Wholestep's program against.

The same maths in fp32 as `wholestep.models` under `NextToken` and `AdamW`, with nothing of the pipeline in it:
parameters are a pytree with weights as [in, out], the gradient is `jax.value_and_grad`'s, the step one `jax.jit` over
arrays with a `NamedSharding` over the mesh's one axis, `fsdp`: parameters, optimizer state and rows of the batch.

It is tuned on the CPU. Tried, not faster beyond the noise, and so not here: leaving the gathers to sharding propagation
(the CPU's compiler all-reduces the gradients and slices them, where an explicit `all_gather` under `shard_map`
reduce-scatters), [B, L, ...] operands, attention by `einsum`, the loss by `take_along_axis`, weights as [out, in].

Suffixes: B batch, L sequence (queries), M sequence (keys), T tokens (B * L), D model width, N query heads, K key/value
heads, G query heads per key/value head, R rows that share keys and values (G * L), H head width, P rotary pairs,
F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from wholestep.graph.optimizer import AdamW
from wholestep.models.decoder import Decoder

Params = dict[str, Any]
State = dict[str, Any]
Batch = Mapping[str, jax.Array]

_LAYER = {
    "attention_norm": "attention_norm",
    "q": "attention.q_proj",
    "k": "attention.k_proj",
    "v": "attention.v_proj",
    "o": "attention.o_proj",
    "feed_forward_norm": "feed_forward_norm",
    "gate": "feed_forward.gate_proj",
    "up": "feed_forward.up_proj",
    "down": "feed_forward.down_proj",
}


def names(config: Decoder.Config) -> Params:
    """The parameters' names in `Decoder`, in the form of this file's pytree."""
    tree: Params = {
        "embed": "embed_tokens.weight",
        "layers": [
            {ours: f"layers.{i}.{theirs}.weight" for ours, theirs in _LAYER.items()} for i in range(len(config.layers))
        ],
        "norm": "norm.weight",
    }
    return tree if config.tie_embeddings else {**tree, "lm_head": "lm_head.weight"}


def init_state(config: Decoder.Config, parameters: Mapping[str, np.ndarray], mesh: jax.sharding.Mesh) -> State:
    """The state before the first step, on `mesh`, from `Decoder`'s parameters by name."""

    def put(array: np.ndarray) -> jax.Array:
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec("fsdp")))

    params = jax.tree.map(lambda name: put(_turned(name, parameters[name])), names(config))
    zeros = [jax.tree.map(lambda p: put(np.zeros(p.shape, p.dtype)), params) for _ in range(2)]
    step = jax.device_put(np.float32(0), NamedSharding(mesh, PartitionSpec()))
    return {"params": params, "mu": zeros[0], "nu": zeros[1], "step": step}


def parameters_by_name(config: Decoder.Config, state: State) -> dict[str, np.ndarray]:
    """The state's parameters as `Decoder` has them."""
    pairs = zip(jax.tree.leaves(names(config)), jax.tree.leaves(state["params"]), strict=True)
    return {name: _turned(name, np.asarray(array)) for name, array in pairs}


def _turned(name: str, array: np.ndarray) -> np.ndarray:
    """[out, in], as PyTorch stores a projection, to [in, out] and back. The embedding is [V, D] on both sides."""
    return array.T if "_proj" in name or "lm_head" in name else array


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + eps) * weight


def rotate(x_BLNH: jax.Array, cos_BL1P: jax.Array, sin_BL1P: jax.Array) -> jax.Array:
    first, second = jnp.split(x_BLNH, 2, -1)
    return jnp.concatenate((first * cos_BL1P - second * sin_BL1P, second * cos_BL1P + first * sin_BL1P), -1)


def attend(q_BLNH: jax.Array, k_BLKH: jax.Array, v_BLKH: jax.Array, visible_BLM: jax.Array) -> jax.Array:
    """Softmax attention; the G queries that share keys and values are rows of one product. Returns [T, N * H]."""
    B, L, N, H = q_BLNH.shape
    K = k_BLKH.shape[2]
    G = N // K
    q_BKRH = q_BLNH.reshape(B, L, K, G, H).transpose(0, 2, 3, 1, 4).reshape(B, K, G * L, H)
    scores_BKRM = (q_BKRH @ k_BLKH.transpose(0, 2, 3, 1)) * H**-0.5
    scores_BKGLM = jnp.where(visible_BLM[:, None, None], scores_BKRM.reshape(B, K, G, L, L), -1e30)
    probabilities_BKRM = jax.nn.softmax(scores_BKGLM, axis=-1).reshape(B, K, G * L, L)
    out_BKGLH = (probabilities_BKRM @ v_BLKH.transpose(0, 2, 1, 3)).reshape(B, K, G, L, H)
    return out_BKGLH.transpose(0, 3, 1, 2, 4).reshape(B * L, N * H)


def forward(
    config: Decoder.Config,
    inverse_frequencies_P: np.ndarray,
    params: Params,
    batch: Batch,
) -> jax.Array:
    """logits_TV, of every token of the batch.

    Rows are flattened to tokens before they are multiplied: the gradient of a weight is then one plain product, where
    XLA would transpose both [B, L, ...] operands first.
    """
    segment_ids_BL = batch["segment_ids"]
    B, L = segment_ids_BL.shape
    causal_LM = jnp.tril(jnp.ones((L, L), bool))
    visible_BLM = causal_LM & (segment_ids_BL[:, :, None] == segment_ids_BL[:, None, :])
    angles_BL1P = batch["positions"][:, :, None, None] * inverse_frequencies_P
    cos_BL1P, sin_BL1P = jnp.cos(angles_BL1P), jnp.sin(angles_BL1P)

    x_TD = params["embed"][batch["tokens"].reshape(-1)]
    for layer, p in zip(config.layers, params["layers"], strict=True):
        heads = (B, L, -1, layer.attention.head_dim)
        h_TD = rms_norm(x_TD, p["attention_norm"], layer.attention_norm.eps)
        q_BLNH = rotate((h_TD @ p["q"]).reshape(heads), cos_BL1P, sin_BL1P)
        k_BLKH = rotate((h_TD @ p["k"]).reshape(heads), cos_BL1P, sin_BL1P)
        v_BLKH = (h_TD @ p["v"]).reshape(heads)
        x_TD = x_TD + attend(q_BLNH, k_BLKH, v_BLKH, visible_BLM) @ p["o"]
        h_TD = rms_norm(x_TD, p["feed_forward_norm"], layer.feed_forward_norm.eps)
        hidden_TF = jax.nn.silu(h_TD @ p["gate"]) * (h_TD @ p["up"])
        x_TD = x_TD + hidden_TF @ p["down"]
    head_DV = params["embed"].T if config.tie_embeddings else params["lm_head"]
    return rms_norm(x_TD, params["norm"], config.norm.eps) @ head_DV


def cross_entropy(logits_TV: jax.Array, labels_T: jax.Array) -> jax.Array:
    """losses_T; 0 where the label is negative."""
    # The label's logit by comparison, not by index: the gradient of indexing is a scatter, this one fuses.
    vocabulary_V = jnp.arange(logits_TV.shape[-1])
    picked_T = jnp.sum(jnp.where(labels_T[:, None] == vocabulary_V, logits_TV, 0.0), -1)
    return jnp.where(labels_T >= 0, jax.nn.logsumexp(logits_TV, -1) - picked_T, 0.0)


def train_step(
    config: Decoder.Config, optimizer: AdamW, inverse_frequencies_P: np.ndarray, mesh: jax.sharding.Mesh
) -> Callable[[State, Batch, float], tuple[State, dict[str, jax.Array]]]:
    """`(state, batch, learning_rate) -> (state, metrics)`, jitted; the state is donated."""
    shards = PartitionSpec("fsdp")

    def whole(shard: jax.Array) -> jax.Array:
        # Its gradient is a reduce-scatter. XLA copies in a gather from one device, so there is none.
        return lax.all_gather(shard, "fsdp", tiled=True) if mesh.shape["fsdp"] > 1 else shard

    def loss_of(params: Params, batch: Batch, weight: jax.Array) -> jax.Array:
        params = jax.tree.map(whole, params)
        losses_T = cross_entropy(forward(config, inverse_frequencies_P, params, batch), batch["labels"].reshape(-1))
        return jnp.sum(losses_T) / weight

    @partial(jax.shard_map, mesh=mesh, in_specs=(shards, shards), out_specs=(PartitionSpec(), PartitionSpec(), shards))
    def loss_norm_grads(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array, Params]:
        weight = lax.psum(jnp.sum(batch["labels"] >= 0), "fsdp")
        loss, grads = jax.value_and_grad(loss_of)(params, batch, jnp.maximum(weight, 1))
        squares = sum(jnp.sum(jnp.square(grad)) for grad in jax.tree.leaves(grads))
        return lax.psum(loss, "fsdp"), jnp.sqrt(lax.psum(squares, "fsdp")), grads

    def step(state: State, batch: Batch, learning_rate: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        loss, norm, grads = loss_norm_grads(state["params"], batch)
        factor = 1.0 if optimizer.clip_norm is None else jnp.minimum(1.0, optimizer.clip_norm / (norm + 1e-6))
        beta1, beta2 = optimizer.betas
        number = state["step"] + 1
        correction1, correction2 = (-jnp.expm1(number * math.log(beta)) for beta in (beta1, beta2))
        grads = jax.tree.map(lambda grad: grad * factor, grads)
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state["mu"], grads)
        nu = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state["nu"], grads)

        def update(parameter: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            direction = (m / correction1) / (jnp.sqrt(v / correction2) + optimizer.eps)
            return parameter * (1 - learning_rate * optimizer.weight_decay) - learning_rate * direction

        params = jax.tree.map(update, state["params"], mu, nu)
        return {"params": params, "mu": mu, "nu": nu, "step": number}, {"loss": loss, "grad_norm": norm}

    return jax.jit(step, donate_argnums=0)
