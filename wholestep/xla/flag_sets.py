"""Compiler flags that belong together, by purpose: as the recipes of MaxText and tpu-recipes group them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wholestep.xla.known_flags import ALL_CHIPS, SPARSE_CORE_CHIPS


@dataclass(frozen=True, kw_only=True)
class FlagSet:
    """Flags that belong together. What they need of others and conflict with is said by each (`Flag`).

    Attributes:
        name: to ask for it by.
        purpose: what it is for.
        values: the flags, and what they are set to.
        chips: those it is for.
        anyway: those among them on which it changed nothing in compiled programs: the compiler does it by itself.
    """

    name: str
    purpose: str
    values: Mapping[str, str]
    chips: tuple[str, ...] = ALL_CHIPS
    anyway: tuple[str, ...] = ()


_OFFLOAD = "xla_tpu_enable_sparse_core_collective_offload_"
_FUSION = "xla_tpu_enable_async_collective_fusion"
_VMEM = "xla_tpu_scoped_vmem_limit_kib"

SETS = {
    flag_set.name: flag_set
    for flag_set in (
        FlagSet(
            name="latency_hiding",
            purpose="transfers beside computation, scheduled again where memory did not suffice",
            values={"xla_tpu_enable_latency_hiding_scheduler": "true", "xla_latency_hiding_scheduler_rerun": "2"},
            anyway=("tpu7x",),
        ),
        FlagSet(
            name="layer_scheduler",
            purpose="the collectives of one layer of a loop beside the computation of another",
            values={
                "xla_tpu_enable_latency_hiding_layer_scheduler": "true",
                "xla_tpu_enable_layer_scheduler_for_dependent_collectives": "true",
                "xla_tpu_enable_sparse_core_collective_aggregator": "true",
            },
            chips=SPARSE_CORE_CHIPS,
        ),
        FlagSet(
            name="scheduler_memory",
            purpose="schedules that mind the memory, where a program hardly fits",
            values={
                "xla_tpu_enable_scheduler_memory_pressure_tracking": "true",
                "xla_tpu_scheduler_percent_shared_memory_limit": "90",
                "xla_latency_hiding_scheduler_rerun": "2",
            },
        ),
        FlagSet(
            name="async_all_gather",
            purpose="all-gathers of sharded weights that need not be waited for, and are not turned into all-reduces",
            values={"xla_tpu_prefer_async_allgather_to_allreduce": "true", "xla_enable_async_all_gather": "true"},
        ),
        FlagSet(
            name="all_gather_fusion",
            purpose="all-gathers in steps inside of fusions that compute",
            values={
                _FUSION: "true",
                f"{_FUSION}_fuse_all_gather": "true",
                f"{_FUSION}_multiple_steps": "true",
                "xla_tpu_overlap_compute_collective_tc": "true",
                "xla_enable_async_all_gather": "true",
            },
        ),
        FlagSet(
            name="all_reduce_fusion",
            purpose="all-reduces in steps inside of fusions that compute",
            values={
                _FUSION: "true",
                f"{_FUSION}_fuse_all_reduce": "true",
                f"{_FUSION}_multiple_steps": "true",
                "xla_tpu_overlap_compute_collective_tc": "true",
                "xla_enable_async_all_reduce": "true",
            },
        ),
        FlagSet(
            name="reduce_scatter_layout",
            purpose="layouts that suit reduce-scatters",
            values={
                "xla_tpu_use_minor_sharding_for_major_trivial_input": "true",
                "xla_tpu_relayout_group_size_threshold_for_reduce_scatter": "1",
                "xla_tpu_assign_all_reduce_scatter_layout": "true",
            },
        ),
        FlagSet(
            name="data_parallel_overlap",
            purpose="all-reduces between slices beside computation",
            values={
                "xla_tpu_enable_data_parallel_all_reduce_opt": "true",
                "xla_tpu_data_parallel_opt_different_sized_ops": "true",
            },
        ),
        FlagSet(
            name="sparsecore_offload",
            purpose="collectives on the SparseCores, beside the matrix units",
            values={
                f"{_OFFLOAD}all_gather": "true",
                f"{_OFFLOAD}2d_all_gather": "true",
                f"{_OFFLOAD}reduce_scatter": "true",
                f"{_OFFLOAD}all_reduce": "true",
                "xla_tpu_enable_sparse_core_reduce_scatter_v2": "true",
                "xla_tpu_use_tc_device_shape_on_sc": "true",
                "xla_sc_disable_megacore_partitioning": "true",
                f"{_FUSION}_fuse_all_gather": "false",
            },
            chips=SPARSE_CORE_CHIPS,
            anyway=("tpu7x",),
        ),
        FlagSet(
            name="sparsecore_queuing",
            purpose="several collectives at once on the SparseCores, queued by the scheduler",
            values={
                "xla_tpu_enable_concurrent_sparse_core_offloading": "true",
                "xla_tpu_enable_sparse_core_offload_queuing_in_lhs": "true",
                "xla_tpu_use_single_sparse_core_for_all_gather_offload": "true",
            },
            chips=SPARSE_CORE_CHIPS,
        ),
        # A limit above a core's VMEM (128 MiB on v5e and v6e, 64 on v5p and TPU7x) compiles, and does nothing more.
        FlagSet(
            name="vmem_96m",
            purpose="larger tiles for dense models; less is prefetched",
            values={_VMEM: "98304"},
            chips=("v5e", "v6e"),
        ),
        FlagSet(
            name="vmem_80m",
            purpose="larger tiles, with room to prefetch, for mixtures of experts",
            values={_VMEM: "81920"},
            chips=("v5e", "v6e"),
        ),
        FlagSet(
            name="vmem_64m",
            purpose="larger tiles, up to all of the VMEM (64 KiB are the compiler's) of v5p and TPU7x",
            values={_VMEM: "65472"},
            chips=("v5e", "v5p", "v6e", "tpu7x"),
        ),
        FlagSet(
            name="bf16_emission",
            purpose="element-wise bf16 computed in bf16: faster, and rounded more often",
            values={"xla_tpu_bf16_emission_mode": "NATIVE_EMISSION"},
            chips=("v6e", "tpu7x"),
        ),
        # Without xla_tpu_aggressive_opt_barrier_removal, which recipes add: barriers are what keeps recomputation.
        FlagSet(
            name="host_offload",
            purpose="transfers to and from the host's memory beside computation, for layers.keep=offload_...",
            values={
                "xla_tpu_enable_all_experimental_scheduler_features": "true",
                "xla_tpu_enable_scheduler_memory_pressure_tracking": "true",
                "xla_tpu_host_transfer_overlap_limit": "24",
                "xla_max_concurrent_host_send_recv": "100",
                "xla_lhs_prioritize_async_depth_over_stall": "true",
                "xla_tpu_enable_ag_backward_pipelining": "true",
                "xla_should_allow_loop_variant_parameter_in_chain": "true",
                "xla_should_add_loop_invariant_op_in_chain": "true",
                "xla_tpu_scheduler_percent_shared_memory_limit": "100",
                "xla_latency_hiding_scheduler_rerun": "2",
            },
        ),
    )
}
