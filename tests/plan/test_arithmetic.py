"""Bounds by arithmetic: by hand on a small model, how they move, and that no compiled program is below them."""

from __future__ import annotations

import pytest
from tiny_run import own_cache

from wholestep.plan.arithmetic import bound, least_bytes
from wholestep.plan.isolated import compile_isolated
from wholestep.plan.job import Job
from wholestep.plan.planner import plan

__all__ = ["own_cache"]

VMEM = 128 * 2**20
LOOP = "layers.execution=loop"
BF16 = "precision.gather=bfloat16"


def job(*overrides: str, recipe: str = "llama3_8b", topology: str = "v6e:2x4", slices: int = 1) -> Job:
    return Job(recipe=recipe, topology=topology, slices=slices, overrides=overrides)


def needed(*overrides: str) -> int:
    return least_bytes(job(*overrides).build())


def test_bytes_by_hand() -> None:
    """Llama 3.1 8B on eight devices, rows of 8,192 tokens: which moment is the largest depends on rows and the loss."""
    model = job().build().model
    embedding, inputs, logits = 128256 * 4096, 32 * 8192 * 4096 * 2, 8192 * 128256 * 2
    state = model.num_parameters() * 12 / 8 - VMEM
    shards = (model.num_parameters() - 2 * embedding - 4096) * 4 / 8
    assert needed() == round(state + inputs + shards)
    assert needed("batch_size=16") == round(state + 2 * (inputs + logits) + embedding * 2)
    assert needed("batch_size=16", "model.lm_head.inner=fused") == round(state + 2 * inputs + shards)
    assert needed("batch_size=16", "mesh.replicate=8", "mesh.fsdp=1") == round(
        model.num_parameters() * 12 + 2 * inputs + shards * 8 - VMEM
    )


def test_seconds_by_hand() -> None:
    """The products of 8B at the peak: 6 a weight, 2 more for what is computed again, all but the last of each layer."""
    recipe = job().build()
    layer = 4096 * 128 * (2 * 32 + 2 * 8)
    forward = 8 * layer + (6 * 3 + 2 * 2) * 4096 * 14336 + 16 * 32 * 128 * 8192 / 2
    per_token = 32 * forward + 6 * 128256 * 4096
    assert bound(job()).seconds == pytest.approx(8192 * per_token / 918e12, rel=1e-3)
    assert bound(job()).tokens_per_second_per_chip == pytest.approx(918e12 / per_token, rel=1e-3)
    assert recipe.batch_size == 8


def test_what_is_kept_costs_memory_and_what_is_computed_again_costs_time() -> None:
    kept = ["offload_layer_inputs", "recompute_all", "save_attention", "save_matmuls"]
    sizes = [needed(f"layers.keep={name}") for name in kept]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)
    times = [bound(job(f"layers.keep={name}")).seconds for name in ("save_all", "save_matmuls", "recompute_all")]
    assert times == sorted(times)
    assert len(set(times)) == len(times)


def test_scores_in_memory_whole_cannot_fit() -> None:
    plain = needed("layers.keep=save_all", "model.layers.*.attention.inner=dot_product")
    assert plain - needed("layers.keep=save_all") == 32 * 32 * 8192 * 8192 * 2
    assert plain > 32 * 2**30


def test_memory_follows_rows_microbatches_and_shards() -> None:
    assert needed("batch_size=24") - needed("batch_size=16") == 32 * 8192 * 4096 * 2 + 8192 * 128256 * 2
    parameters = job().build().model.num_parameters()
    assert needed("batch_size=32", "microbatches=2") - needed("batch_size=16") == parameters * 4 / 8
    assert needed("batch_size=64", "mesh.replicate=2", "mesh.fsdp=4") - needed("batch_size=64") == parameters * 12 / 8
    assert needed() - needed("optimizer_state=host") == parameters * 8 / 8


def test_links_bound_a_step_of_few_tokens() -> None:
    short = bound(job("sequence_length=128"))
    assert short.seconds > 2 * bound(job()).seconds * 128 / 8192
    assert bound(job("sequence_length=128", "layers.gathered=kept")).seconds < short.seconds
    between = bound(job("sequence_length=128", slices=2))
    assert between.seconds > short.seconds  # replicas add up over the data center's network


def test_the_plain_experts_are_as_many_times_slower_as_there_are_experts() -> None:
    def seconds(inner: str) -> float:
        inner = f"model.layers.*.feed_forward.inner={inner}"
        return bound(job(inner, recipe="qwen3_30b_a3b", topology="tpu7x:4x4x4")).seconds

    assert seconds("every_expert") > 20 * seconds("grouped_matmul")


@pytest.mark.parametrize(
    ("recipe", "topology", "overrides"),
    [
        (
            "llama3_debug",
            "v6e:2x2",
            (
                LOOP,
                BF16,
                "layers.keep=save_matmuls",
                "mesh.replicate=2",
                "mesh.fsdp=2",
                "microbatches=2",
                "model.lm_head.inner=fused",
            ),
        ),
        ("qwen3_moe_debug", "tpu7x:2x2x1", (LOOP, BF16, "layers.keep=offload_layer_inputs")),
    ],
)
def test_no_compiled_program_is_below_its_bounds(recipe: str, topology: str, overrides: tuple[str, ...]) -> None:
    what = job(*overrides, recipe=recipe, topology=topology)
    least, report = bound(what), plan(what, compile_isolated(what))
    assert least.needed <= report.memory.needed
    assert least.seconds <= report.speed.low
    assert least.tokens_per_second_per_chip >= report.speed.tokens_per_second_per_chip
    assert least.needed > report.memory.needed / 5  # and the bound says something
