"""Flags of the TPU compiler that public training recipes set.

The names and the values that they take are those of libtpu 0.0.42 (a test asks it). Google documents few of them: what
a line here says is read off the name, off what the recipes of MaxText and tpu-recipes set together, and off what
changed in small compiled programs. None was timed on a TPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wholestep.xla.chips import CHIPS

ALL_CHIPS = tuple(chip.name for chip in CHIPS)
SPARSE_CORE_CHIPS = tuple(chip.name for chip in CHIPS if chip.sparse_cores)
OFF = ("false", "auto")

SWITCH = ("true", "false")
AUTO = ("true", "false", "auto")
INTEGER = "an integer"


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag.

    Attributes:
        name: as the compiler knows it.
        takes: the values, or `INTEGER`. `auto` leaves it to the compiler.
        purpose: what it does, or what its number is.
        chips: those on which it does something.
        needs: flags, with the values that they must be given where this one is switched on.
        conflicts: flags, with the values that they must not be given where this one is switched on.
    """

    name: str
    takes: tuple[str, ...] | str
    purpose: str
    chips: tuple[str, ...] = ALL_CHIPS
    needs: Mapping[str, str] = field(default_factory=dict)
    conflicts: Mapping[str, str] = field(default_factory=dict)


def _flags(takes: tuple[str, ...] | str, purposes: Mapping[str, str], **shared: Any) -> tuple[Flag, ...]:
    return tuple(Flag(name=name, takes=takes, purpose=purpose, **shared) for name, purpose in purposes.items())


_FUSION = "xla_tpu_enable_async_collective_fusion"
_OFFLOAD = "xla_tpu_enable_sparse_core_collective_offload_"
_AGGREGATOR = "xla_tpu_enable_sparse_core_collective_aggregator"
_LAYER_SCHEDULER = "xla_tpu_enable_latency_hiding_layer_scheduler"

_SCHEDULER = (
    *_flags(
        SWITCH,
        {
            "xla_tpu_enable_latency_hiding_scheduler": "order operations so that transfers run beside computation",
            "xla_tpu_enable_all_experimental_scheduler_features": "what the scheduler has that is not on by default",
        },
    ),
    *_flags(
        AUTO,
        {
            "xla_tpu_enable_ilp_latency_hiding_scheduler": "schedule by solving an integer program",
            "xla_latency_hiding_scheduler_enable_selective_resources": "choose which transfers to overlap with what",
            "xla_lhs_prioritize_async_depth_over_stall": "start long chains of transfers first, even if one waits",
            "xla_tpu_enable_scheduler_memory_pressure_tracking": "mind the memory in use while scheduling",
        },
    ),
    *_flags(
        INTEGER,
        {
            "xla_latency_hiding_scheduler_rerun": "times to schedule again with less memory where it was exceeded",
            "xla_tpu_scheduler_percent_shared_memory_limit": "percent of the memory that a schedule may plan with",
        },
    ),
    *_flags(
        AUTO,
        {_LAYER_SCHEDULER: "overlap the collectives of one layer of a loop with the computation of another"},
        chips=SPARSE_CORE_CHIPS,
        needs={_AGGREGATOR: "true"},
    ),
    *_flags(
        AUTO,
        {
            "xla_tpu_enable_layer_scheduler_for_dependent_collectives": "also collectives that depend on each other",
            "xla_tpu_enable_multi_compute_overlap_in_layer_scheduler": "overlap one collective with several products",
        },
        chips=SPARSE_CORE_CHIPS,
        needs={_LAYER_SCHEDULER: "true"},
    ),
)

_COLLECTIVES = (
    *_flags(
        SWITCH,
        {
            "xla_tpu_prefer_async_allgather_to_allreduce": "all-gathers stay so and do not become all-reduces",
            "xla_tpu_enable_async_all_to_all": "start an all-to-all, and wait for it later",
            "xla_tpu_overlap_compute_collective_tc": "computation and collectives at once on a TensorCore",
            "xla_tpu_enable_ag_backward_pipelining": "start all-gathers of a loop's backward pass an iteration early",
            "xla_tpu_enable_windowed_einsum_for_all_gather": "an all-gather and its product, piece by piece",
            "xla_tpu_enable_windowed_einsum_for_reduce_scatter": "a product and its reduce-scatter, piece by piece",
            "xla_tpu_enable_data_parallel_all_reduce_opt": "overlap gradients' all-reduces between slices",
            "xla_tpu_data_parallel_opt_different_sized_ops": "the same for all-reduces of unequal sizes",
            "xla_tpu_use_minor_sharding_for_major_trivial_input": "scatter along a minor dimension, if it can",
            "xla_tpu_assign_all_reduce_scatter_layout": "choose layouts that suit reduce-scatters",
            _FUSION: "run collectives in steps inside of fusions that compute",
            f"{_FUSION}_multiple_steps": "spread such a collective over several fusions",
        },
    ),
    *_flags(
        AUTO,
        {
            "xla_enable_async_all_gather": "start an all-gather, and wait for it later",
            "xla_enable_async_all_reduce": "start an all-reduce, and wait for it later",
            "xla_enable_async_collective_permute": "start a collective-permute, and wait for it later",
            "xla_enable_async_reduce_scatter_fusion": "start a fused reduce-scatter, and wait for it later",
            "xla_tpu_enable_ici_ar_pipelining": "pipeline all-reduces over the chips' links",
        },
    ),
    *_flags(
        INTEGER,
        {
            "xla_max_concurrent_async_all_gathers": "all-gathers under way at once",
            "xla_tpu_relayout_group_size_threshold_for_reduce_scatter": "devices from which on input is laid out anew",
        },
    ),
    *_flags(
        AUTO, {f"{_FUSION}_fuse_all_gather": "all-gathers among those inside of fusions"}, conflicts={_FUSION: "false"}
    ),
    *_flags(
        SWITCH,
        {
            f"{_FUSION}_fuse_all_reduce": "all-reduces among those inside of fusions",
            f"{_FUSION}_fuse_reduce_scatter": "reduce-scatters among those inside of fusions",
        },
        conflicts={_FUSION: "false"},
    ),
)

_SPARSE_CORE = (
    *_flags(
        AUTO,
        {f"{_OFFLOAD}all_gather": "run all-gathers on the SparseCores"},
        chips=SPARSE_CORE_CHIPS,
        conflicts={f"{_FUSION}_fuse_all_gather": "true"},  # together, the compiler offloads fewer
    ),
    *_flags(
        AUTO,
        {
            f"{_OFFLOAD}2d_all_gather": "also all-gathers along two dimensions of the torus",
            f"{_OFFLOAD}3d_all_gather": "also all-gathers along three dimensions of the torus",
            f"{_OFFLOAD}reduce_scatter": "run reduce-scatters on the SparseCores",
            f"{_OFFLOAD}nd_reduce_scatter": "also reduce-scatters along several dimensions of the torus",
            f"{_OFFLOAD}all_reduce": "run all-reduces on the SparseCores",
            "xla_tpu_enable_sparse_core_reduce_scatter_v2": "the SparseCores' second form of a reduce-scatter",
            "xla_tpu_use_single_sparse_core_for_all_gather_offload": "one SparseCore for an all-gather",
            "xla_tpu_enable_concurrent_sparse_core_offloading": "several offloaded operations at once",
            "xla_tpu_enable_sparse_core_offload_queuing_in_lhs": "let the scheduler queue offloaded operations",
            _AGGREGATOR: "join small collectives into one for the SparseCores",
        },
        chips=SPARSE_CORE_CHIPS,
    ),
    *_flags(
        SWITCH,
        {
            "xla_tpu_use_tc_device_shape_on_sc": "the TensorCore's layouts on the SparseCores, no copies",
            "xla_sc_disable_megacore_partitioning": "no division of SparseCore programs between a chip's cores",
            "xla_tpu_enable_offloading_gather_to_sparsecore": "run gathers (lookups) on the SparseCores",
        },
        chips=SPARSE_CORE_CHIPS,
    ),
)

_MEMORY = (
    *_flags(
        INTEGER,
        {
            "xla_tpu_scoped_vmem_limit_kib": "KiB of fast memory (VMEM) for one operation; the rest is for prefetching",
            "xla_tpu_host_transfer_overlap_limit": "transfers to and from the host under way at once",
            "xla_max_concurrent_host_send_recv": "sends and receives with the host under way at once",
            "xla_tpu_dvfs_p_state": "voltage and frequency step that the chip runs at",
        },
    ),
    *_flags(
        SWITCH,
        {
            "xla_tpu_pipeline_memory_host_transfers": "start a loop's transfers with the host an iteration early",
            "xla_tpu_rwb_fusion": "fuse a reduction with what writes its result broadcast",
        },
    ),
    *_flags(
        AUTO,
        {
            "xla_should_allow_loop_variant_parameter_in_chain": "pipeline transfers of what a loop's iterations change",
            "xla_should_add_loop_invariant_op_in_chain": "pipeline transfers together with what does not change",
            "xla_tpu_aggressive_opt_barrier_removal": "drop optimization barriers early, those of recomputation too",
            "xla_tpu_enable_tpu_custom_call_scoped_vmem_adjustments": "set the VMEM of each Pallas kernel apart",
        },
    ),
    Flag(
        name="xla_tpu_bf16_emission_mode",
        takes=("PROMOTE_F32", "NATIVE_EMISSION", "SLP_VECTORIZER", "EXACT_PRECISION"),
        purpose="whether element-wise bf16 is computed in fp32 or as it is",
        chips=("v6e", "tpu7x"),  # their vector units compute in bf16
    ),
)

FLAGS = {flag.name: flag for flag in (*_SCHEDULER, *_COLLECTIVES, *_SPARSE_CORE, *_MEMORY)}
