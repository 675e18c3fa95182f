"""What a schedule consists of: loops, what starts and what waits, where it came from."""

from __future__ import annotations

import pytest
from plan.hlo_text import module

from wholestep.parallel import Mesh
from wholestep.plan.costs import Cost, Schedule, costs, loops, walk
from wholestep.plan.hlo import Module
from wholestep.xla.topologies import topology_chip, topology_mesh

GROUPS = "replica_groups={{0,1,2,3}}"


def schedule(program: Module, slices: int = 1, **kernels: int) -> Schedule:
    mesh = topology_mesh("v6e:2x2", Mesh(replicate=slices, fsdp=4), slices)
    return costs(program, mesh, topology_chip("v6e:2x2"), {("layers.0", name): n for name, n in kernels.items()})


def by_name(found: Schedule) -> dict[str, Cost]:
    return {cost.instruction.name: cost for cost, _ in walk(found)}


def test_an_all_reduce_between_slices_starts_where_it_is_sent_and_is_awaited_where_it_is_received() -> None:
    frontend = (
        'frontend_attributes={_xla_host_transfer_rendezvous="psum_0",_xla_megascale_target="{1,2}x{0:3}",'
        '_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    found = by_name(
        schedule(
            module(
                f"""%x = bf16[1024,128]{{1,0}} parameter(0)
                %after = token[] after-all()
                %recv = (bf16[1024,128]{{1,0}}, u32[], token[]) recv(%after), channel_id=1, {frontend}
                %send = (bf16[1024,128]{{1,0}}, u32[], token[]) send(%x, %after), channel_id=2, {frontend}
                %n = bf16[1024,128]{{1,0}} negate(%x)
                %send-done = token[] send-done(%send), channel_id=2
                %recv-done = (bf16[1024,128]{{1,0}}, token[]) recv-done(%recv), channel_id=1
                ROOT %y = bf16[1024,128]{{1,0}} get-tuple-element(%recv-done), index=0"""
            ),
            slices=2,
        )
    )
    assert list(found) == ["send", "n", "recv-done"]
    send, done = found["send"], found["recv-done"]
    assert send.collective is not None and send.starts and send.work == "collective"
    assert (send.collective.group.network, send.collective.size) == ("DCN", 1024 * 128 * 2)
    assert (done.awaits, done.collective, dict(done.moved)) == ("send", None, {})


def chained(kind: str) -> str:
    return f'all-gather(%p.{kind}), channel_id=3, {GROUPS}, dimensions={{0}}, frontend_attributes={{chain_id="0"}}'


def test_a_collective_that_is_spread_over_fusions_counts_once_and_goes_on_beside_their_work() -> None:
    state = "(bf16[256,128]{1,0}, bf16[1024,128]{1,0}, u32[])"
    found = by_name(
        schedule(
            module(
                f"""%x = bf16[256,128]{{1,0}} parameter(0)
                %y = bf16[128,128]{{1,0}} parameter(1)
                %start = {state} fusion(%x), kind=kCustom, calls=%starts
                %shard = bf16[256,128]{{1,0}} get-tuple-element(%start), index=0
                %step = ({state}, bf16[128,128]{{1,0}}) fusion(%shard, %y), kind=kCustom, calls=%steps
                %shard.2 = bf16[256,128]{{1,0}} get-tuple-element(%step), index=0
                ROOT %done = bf16[1024,128]{{1,0}} fusion(%shard.2), kind=kCustom, calls=%ends""",
                f"""starts
                %p.s = bf16[256,128]{{1,0}} parameter(0)
                %g.s = bf16[1024,128]{{1,0}} {chained("s")}
                ROOT %r.s = {state} custom-call(%g.s), custom_call_target="AsyncCollectiveStart" """,
                f"""steps
                %p.t = bf16[256,128]{{1,0}} parameter(0)
                %q.t = bf16[128,128]{{1,0}} parameter(1)
                %g.t = bf16[1024,128]{{1,0}} {chained("t")}
                %d.t = bf16[128,128]{{1,0}} dot(%q.t, %q.t), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
                ROOT %r.t = ({state}, bf16[128,128]{{1,0}}) tuple(%g.t, %d.t)""",
                f"""ends
                %p.e = bf16[256,128]{{1,0}} parameter(0)
                %g.e = bf16[1024,128]{{1,0}} {chained("e")}
                ROOT %r.e = bf16[1024,128]{{1,0}} custom-call(%g.e), custom_call_target="AsyncCollectiveDone" """,
            )
        )
    )
    assert {name: (cost.work, cost.starts, cost.awaits) for name, cost in found.items()} == {
        "start": ("collective", True, None),
        "step": ("matmul", False, None),
        "done": ("collective", False, "start"),
    }
    assert [cost.collective.size for cost in found.values() if cost.collective] == [3 * 256 * 128 * 2]
    assert found["step"].flops == 2 * 128**3


def test_a_collective_on_the_sparse_core_is_one_beside_the_core() -> None:
    found = by_name(
        schedule(
            module(
                """%x = bf16[256,128]{1,0} parameter(0)
                %start = ((bf16[256,128]{1,0}), bf16[1024,128]{1,0}, u32[]) call-start(%x), \
async_execution_thread="sparsecore", to_apply=%called
                ROOT %done = bf16[1024,128]{1,0} call-done(%start)""",
                f"called\n%p = bf16[256,128]{{1,0}} parameter(0)\n"
                f"ROOT %g = bf16[1024,128]{{1,0}} all-gather(%p), {GROUPS}, dimensions={{0}}",
            )
        )
    )
    start = found["start"]
    assert start.collective is not None and start.collective.operation == "all-gather"
    assert (start.work, start.starts, start.on_sparse_core, found["done"].awaits) == ("collective", True, True, "start")


def test_loops_multiply_and_kernels_share_what_their_operator_computes() -> None:
    kernel = (
        'custom-call(%v), custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/layers.0[a.py,1,attend]/k"}'
    )
    program = module(
        """%x = f32[8]{0} parameter(0)
        %zero = s32[] constant(0)
        %t = (s32[], f32[8]{0}) tuple(%zero, %x)
        %loop = (s32[], f32[8]{0}) while(%t), condition=%less, body=%body, metadata={op_name="jit(f)/layers.0/while"}
        %v = f32[8]{0} get-tuple-element(%loop), index=1
        """
        + f"ROOT %last = f32[8]{{0}} {kernel}",
        """less
        %c = (s32[], f32[8]{0}) parameter(0)
        %i.c = s32[] get-tuple-element(%c), index=0
        %five = s32[] constant(5)
        ROOT %goes = pred[] compare(%i.c, %five), direction=LT""",
        f"""body
        %b = (s32[], f32[8]{{0}}) parameter(0)
        %i = s32[] get-tuple-element(%b), index=0
        %one = s32[] constant(1)
        %next = s32[] add(%i, %one)
        %v = f32[8]{{0}} get-tuple-element(%b), index=1
        %k = f32[8]{{0}} {kernel}
        ROOT %r = (s32[], f32[8]{{0}}) tuple(%next, %k)""",
    )
    found = schedule(program, attend=600)
    assert [(loop.trips, loop.known) for loop in loops(found)] == [(5, True)]
    times = {cost.instruction.name: times for cost, times in walk(found)}
    assert times == {"next": 5, "k": 5, "last": 1}
    last = by_name(found)["last"]
    assert (last.work, last.flops, last.origin.line) == ("kernel", 100, "a.py:1")


@pytest.mark.parametrize("target", ["AllocateBuffer", "PrepareAsyncCallStart"])
def test_what_only_prepares_is_no_work(target: str) -> None:
    assert not schedule(module(f'ROOT %b = f32[8]{{0}} custom-call(), custom_call_target="{target}"'))
