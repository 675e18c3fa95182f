"""What a step needs at least, in bytes and in seconds, by arithmetic: nothing is captured or compiled.

Both figures are bounds from below, never estimates: of what cannot be told without the compiler, only what no compiler
can do without is counted. A step that does not fit by them does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wholestep.kernels.fused_cross_entropy import FusedCrossEntropy
from wholestep.models.decoder import DecoderLayer
from wholestep.models.layers.attention import Attention, DotProductAttention
from wholestep.models.layers.feed_forward import FeedForward
from wholestep.models.layers.head import WholeLogits
from wholestep.models.layers.mixture import EveryExpert, MixtureOfExperts
from wholestep.pipeline import Recipe
from wholestep.plan.job import Job
from wholestep.plan.network import Collective, Group, group_of
from wholestep.plan.time_model import HOST_LINK, TimeModel
from wholestep.xla.chips import Chip
from wholestep.xla.rates import HOST_BYTES_PER_SECOND
from wholestep.xla.topologies import topology_chip

STATE_DTYPE_BYTES = 4
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
# The most that a core's fast memory holds (of v5e and v6e): what lies there is not counted as the device's.
_VMEM_BYTES = 128 * 2**20


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a step takes at least.

    Attributes:
        needed: bytes of a device's memory.
        seconds: of a step.
        tokens_per_second_per_chip: at most, that is in `seconds`.
        microbatch_rows: of a device.
    """

    needed: int
    seconds: float
    tokens_per_second_per_chip: float
    microbatch_rows: int


def bound(job: Job) -> Bound:
    """The bounds of a job's step.

    Raises:
        ConfigError: a setting is wrong.
    """
    recipe = job.build()
    recipe.check()
    seconds = least_seconds(job, recipe)
    tokens = recipe.batch_size * recipe.sequence_length
    return Bound(
        needed=least_bytes(recipe),
        seconds=seconds,
        tokens_per_second_per_chip=tokens / seconds / job.chips,
        microbatch_rows=recipe.batch_size // recipe.mesh.size // recipe.microbatches,
    )


def least_bytes(recipe: Recipe) -> int:
    """Bytes of a device's memory that a step needs at least: the state, and the most of what lives at once at

    - the loss: what layers keep, the head's gathered weight, and the logits unless they are made in tiles;
    - the gradient of the head, whole, in the dtype it is reduced in: a reduce-scatter needs all of it, and layers still
      keep everything;
    - the start of the layers' backward loop: what they keep, and a gradient for every shard of theirs;
    - the gradient of the embedding, whole; layers keep nothing any more, and have all their gradients.

    The state is 4 bytes a parameter and those of the optimizer's slots (8 for AdamW in fp32), unless these are on the
    host, all of it in shards. Where there are microbatches, shards of all gradients to add up in are there at any
    moment. Weights that need no gathering are not counted a second time. What is not state, the compiler may put into
    the core's fast memory, as much as that holds.
    """
    model, mesh = recipe.model, recipe.mesh
    shards_of_slots = _slot_bytes(recipe) if recipe.optimizer_state == "device" else 0.0
    shard_bytes = model.num_parameters() * STATE_DTYPE_BYTES / mesh.fsdp
    sums = shard_bytes if recipe.microbatches > 1 else 0.0
    in_layers = sum(layer.num_parameters(model.dim) for layer in model.layers)
    sharded, looped = mesh.fsdp > 1, recipe.layers.execution == "loop"
    gather, reduce = DTYPE_BYTES[recipe.precision.gather], DTYPE_BYTES[recipe.precision.reduce]

    embedding = model.vocab_size * model.dim
    tokens = _tokens(recipe) // recipe.microbatches
    kept = tokens * gather * sum(_kept(recipe, layer) for layer in model.layers)
    if looped and sharded and recipe.layers.gathered == "kept":
        kept += in_layers * gather
    shards = in_layers * STATE_DTYPE_BYTES / mesh.fsdp if looped and not sums else 0.0
    whole_logits = isinstance(model.lm_head.inner, WholeLogits.Config)
    moments = (
        kept + sharded * embedding * gather + whole_logits * tokens * model.vocab_size * gather,
        kept + sharded * embedding * reduce,
        kept + shards,
        shards + sharded * embedding * reduce,
    )
    return round(shard_bytes + shards_of_slots + max(0.0, sums + max(moments) - _VMEM_BYTES))


def least_seconds(job: Job, recipe: Recipe) -> float:
    """Seconds that a step takes at least: the longest of what can go on at the same time,

    - matrix products and attention at the chip's peak, with what is computed again;
    - weights gathered and gradients reduced over the links of the `fsdp` axis, by the time model's best case;
    - gradients added up over `replicate`, likewise;
    - what is moved to the host, one way.

    The peak is the published one, faster by as much as the clock may be faster than is likely.
    """
    chip = topology_chip(job.topology)
    slow, fast = chip.clock_hz
    peak = chip.peak_flops / chip.devices * fast / slow
    return max(_tokens(recipe) * _flops_per_token(recipe) / peak, *_links(job, recipe, chip), _host(recipe, chip))


def _tokens(recipe: Recipe) -> int:
    """Of one device in a step."""
    return recipe.batch_size // recipe.mesh.size * recipe.sequence_length


def _links(job: Job, recipe: Recipe, chip: Chip) -> tuple[float, float]:
    """Seconds on the links of either axis.

    Every microbatch gathers all weights and reduces all gradients; a loop of layers gathers its own again for the
    backward pass unless they are kept. (Laid out, the compiler may find that it has them.) Replicas add up shards."""
    mesh, model, times = job.mesh(recipe), recipe.model, TimeModel(chip, "best")
    parameters = model.num_parameters()
    gathered = parameters
    if recipe.layers.execution == "loop" and recipe.layers.gathered == "again":
        gathered += sum(layer.num_parameters(model.dim) for layer in model.layers)
    places = np.arange(mesh.size).reshape(mesh.devices.shape)
    along_fsdp, along_replicate = group_of(places[0], mesh, chip), group_of(places[:, 0], mesh, chip)
    over_fsdp = (
        ("all-gather", gathered * DTYPE_BYTES[recipe.precision.gather]),
        ("reduce-scatter", parameters * DTYPE_BYTES[recipe.precision.reduce]),
    )
    fsdp = sum(_collective_seconds(times, name, along_fsdp, size) for name, size in over_fsdp)
    shards = parameters * STATE_DTYPE_BYTES // recipe.mesh.fsdp
    replicate = _collective_seconds(times, "all-reduce", along_replicate, shards)
    return (
        recipe.microbatches * fsdp if along_fsdp.size > 1 else 0.0,
        replicate if along_replicate.size > 1 else 0.0,
    )


def _collective_seconds(times: TimeModel, operation: str, group: Group, size: int) -> float:
    """Over all links that the group has."""
    return times.collective_seconds(Collective(operation, group, size, size, group.links))


def _host(recipe: Recipe, chip: Chip) -> float:
    """Seconds of what layers and the optimizer move to the host, one way."""
    moved = 0.0
    if recipe.layers.keep.startswith("offload_") and recipe.layers.execution == "loop":
        elements = sum(_offloaded(recipe, layer) for layer in recipe.model.layers)
        moved += _tokens(recipe) * elements * DTYPE_BYTES[recipe.precision.gather]
    if recipe.optimizer_state == "host":
        moved += _slot_bytes(recipe)
    return moved / (HOST_BYTES_PER_SECOND / chip.devices * HOST_LINK["best"])


def _slot_bytes(recipe: Recipe) -> float:
    """Of a device's shards of the optimizer's slots."""
    each = sum(dtype.itemsize for dtype in recipe.optimizer.slots.values())
    return recipe.model.num_parameters() * each / recipe.mesh.fsdp


def _kept(recipe: Recipe, layer: DecoderLayer.Config) -> int:
    """Elements a token that a layer keeps on the device for its backward pass.

    Its input, unless that is on the host. Experts' products are left out, and of what `save_all` keeps all but products
    and the scores of plain attention. Of layers laid out only the input counts: there the compiler decides what to
    compute again."""
    keep, attention = recipe.layers.keep, layer.attention
    if recipe.layers.execution != "loop":
        return recipe.model.dim
    match keep:
        case "offload_layer_inputs" | "offload_matmuls":
            return 0
        case "save_attention":
            return recipe.model.dim + attention.num_heads * attention.head_dim
        case "save_matmuls":
            return _products(recipe, layer)
        case "save_all":
            plain = isinstance(attention.inner, DotProductAttention.Config)
            return _products(recipe, layer) + plain * attention.num_heads * recipe.sequence_length
        case _:
            return recipe.model.dim


def _offloaded(recipe: Recipe, layer: DecoderLayer.Config) -> int:
    return recipe.model.dim if recipe.layers.keep == "offload_layer_inputs" else _products(recipe, layer)


def _products(recipe: Recipe, layer: DecoderLayer.Config) -> int:
    """Elements a token of a layer's input and of the products with weights whose results its gradients need: queries,
    keys, values, attention's output, gate and up."""
    attention, feed_forward = layer.attention, layer.feed_forward
    heads = (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim
    hidden = 2 * feed_forward.hidden_dim if isinstance(feed_forward, FeedForward.Config) else 0
    return 2 * recipe.model.dim + heads + hidden


def _flops_per_token(recipe: Recipe) -> float:
    """Forward, backward, and in a loop of layers what its policy computes again.

    The head is 6 a weight, 8 where logits are made in tiles, twice. (Laid out, the compiler merges what is computed
    again with the first time.)"""
    head = (8 if isinstance(recipe.model.lm_head.inner, FusedCrossEntropy.Config) else 6) * recipe.model.vocab_size
    return head * recipe.model.dim + sum(_layer_flops(recipe, layer) for layer in recipe.model.layers)


def _layer_flops(recipe: Recipe, layer: DecoderLayer.Config) -> float:
    """FLOPs a token. Of the feed-forward network the last product is not computed again: no gradient needs it."""
    dim = recipe.model.dim
    projections = layer.attention.flops_per_token(dim, 0)
    core = 12 * layer.attention.num_heads * layer.attention.head_dim * _keys(layer.attention, recipe.sequence_length)
    feed_forward = layer.feed_forward.flops_per_token(dim)
    experts = layer.feed_forward
    if isinstance(experts, MixtureOfExperts.Config) and isinstance(experts.inner, EveryExpert.Config):
        feed_forward += (experts.num_experts - 1) * 18 * dim * experts.hidden_dim * experts.num_chosen
    again = 0.0
    if recipe.layers.execution == "loop":
        keep = recipe.layers.keep
        if keep in ("recompute_all", "offload_layer_inputs", "save_attention"):
            again += projections / 3 + feed_forward / 3 * 2 / 3
        if keep in ("recompute_all", "offload_layer_inputs", "save_matmuls", "offload_matmuls"):
            again += core / 3
    return projections + core + feed_forward + again


def _keys(attention: Attention.Config, length: int) -> float:
    """That a query is multiplied with, on average: all of them where scores are written out, and for a kernel those
    up to itself that it sees, without regard to documents."""
    inner = attention.inner
    if isinstance(inner, DotProductAttention.Config):
        return length
    window = min(length, inner.window or length)
    return window - window * window / (2 * length)
