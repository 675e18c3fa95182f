"""The compiler's buffer assignment, as it dumps it, and what it holds against the memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import Array
from plan.compiled_program import Spec, compiled, lowered

from wholestep.errors import DeviceMemoryError, HostMemoryError
from wholestep.parallel import Mesh
from wholestep.plan.assignment import Placed, in_use, parse_assignment
from wholestep.xla.memory_use import compile_for_tpu
from wholestep.xla.topologies import topology_mesh

BUFFERS = """BufferAssignment:
allocation 0: size 512, constant:
 value: <1 constant.1 @0> (size=4,offset=0): s32[]{:T(128)}
allocation 1: size 8192, output shape is |f32[16,128]|, maybe-live-out:
 value: <9 result @0> (size=8192,offset=0): f32[16,128]{1,0:T(8,128)}
allocation 2: size 4096, parameter 1, shape |f32[8,128]| at ShapeIndex {}:
 value: <2 param.b @0> (size=4096,offset=0): f32[8,128]{1,0:T(8,128)}
allocation 3: size 16384, parameter 0, shape |f32[32,128]| at ShapeIndex {}, maybe-live-out:
 value: <3 param.a @0> (size=16384,offset=0): f32[32,128]{1,0:T(8,128)}
allocation 4: size 4096, color 6, thread-local:
allocation 5: size 512, thread-local:
allocation 6: size 12288, preallocated-temp:
 value: <4 first @0> (size=4096,offset=0): f32[8,128]{1,0:T(8,128)}
 value: <5 loop{1} @0> (size=4096,offset=4096): f32[8,128]{1,0:T(8,128)}
 value: <6 body.p{0} (phi) @0> (size=4096,offset=4096): f32[8,128]{1,0:T(8,128)}
 value: <7 last @0> (size=8192,offset=4096): f32[16,128]{1,0:T(8,128)}
allocation 7: size 99999, color 1, preallocated-temp:
 value: <8 fast @1> (size=99999,offset=0): f32[8,128]{1,0:T(8,128)S(1)}
Total bytes used: 41472
"""
RANGES = """HloLiveRange (max 9):
  InstructionSequence:
    0:param.a
    1:first
    2:loop
    3:last
  BufferLiveRange:
    first{}:1-2
    loop{1}:2-3
    body.p{0}:2-2
    last{}:3-4
  Live ranges at 2 (peak):
    first{}: 4096 bytes (cumulative: 4096 bytes)
"""


def test_a_dump_is_read() -> None:
    found = parse_assignment(BUFFERS, RANGES)
    assert found.parameters == {0: 16384, 1: 4096}
    assert (found.others, found.heap) == (512 + 8192 + 512, 12288), "other memories are not counted"
    assert found.needed == 16384 + 4096 + 512 + 8192 + 512 + 12288
    assert found.order == ("param.a", "first", "loop", "last")
    assert [(each.instruction, each.index, each.offset, each.size, each.first, each.last) for each in found.placed] == [
        ("first", "{}", 0, 4096, 1, 2),
        ("loop", "{1}", 4096, 4096, 2, 3),
        ("body.p", "{0}", 4096, 4096, 2, 2),
        ("last", "{}", 4096, 8192, 3, 4),
    ]


def test_what_shares_a_place_counts_once() -> None:
    found = parse_assignment(BUFFERS, RANGES)
    at = dict(found.over_time(lambda placed: placed.instruction.partition(".")[0]))
    assert at == {
        1: {"first": 4096},
        2: {"first": 4096, "loop": 4096},
        3: {"last": 8192},  # begins where the loop's lies, and is larger
        4: {"last": 8192},
        5: {},
    }


def placed(offset: int, size: int) -> Placed:
    return Placed(f"{offset}+{size}", "{}", size, offset, 0, 1, "f32[1]")


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        ([(0, 10), (10, 5)], 15),
        ([(0, 10), (20, 5)], 15),
        ([(0, 10), (5, 10)], 15),
        ([(0, 10), (2, 3), (4, 8)], 12),
        ([(0, 10), (0, 10)], 10),
        ([], 0),
    ],
    ids=["beside", "gap", "overlap", "inside", "same", "none"],
)
def test_every_byte_counts_once(live: list[tuple[int, int]], expected: int) -> None:
    assert sum(in_use([placed(*each) for each in live], lambda each: each.instruction).values()) == expected


def probabilities(x: Array, w: Array) -> Array:
    return jax.nn.softmax((x @ w).astype(jnp.float32), axis=-1)[:, :1]


def test_the_compiler_holds_what_is_needed_against_the_memory() -> None:
    """A MiB more than what the assignment and the program's code take is enough; what the assignment takes alone,
    rounded down, is not."""
    mesh = topology_mesh("v6e:2x2", Mesh(fsdp=4))
    program = lowered(probabilities, mesh, Spec(), ((8192, 256), Spec()), ((256, 16384), Spec()))
    found = compiled(program)
    needed, code = found.assignment.needed, found.analysis.generated_code_size_in_bytes
    assert sum(found.assignment.parameters.values()) == found.analysis.argument_size_in_bytes
    assert needed == found.total
    assert needed > 500 * 2**20, "what is kept must be too large for the fast memory"
    enough, too_little = (needed + code) // 2**20 + 1, needed // 2**20
    compile_for_tpu(program, options={"xla_tpu_max_hbm_size_mib": str(enough)})
    with pytest.raises(DeviceMemoryError) as error:
        compile_for_tpu(program, options={"xla_tpu_max_hbm_size_mib": str(too_little)})
    assert error.value.needed == pytest.approx(needed, abs=2**20 / 100)  # as it is printed


def kept_on_the_host(x: Array) -> Array:
    """Six hundred arrays of 256 MiB."""

    def forward(x: Array, _: None) -> tuple[Array, Array]:
        return jnp.sin(x), jax.device_put(x, jax.memory.Space.Host)

    def backward(x: Array, kept: Array) -> tuple[Array, None]:
        return x * jnp.cos(jax.device_put(kept, jax.memory.Space.Device)), None

    x, kept = jax.lax.scan(forward, x, None, length=600)
    return jax.lax.scan(backward, x, kept, reverse=True)[0]


def test_what_does_not_fit_the_host_is_not_said_of_the_device() -> None:
    program = lowered(kept_on_the_host, topology_mesh("v6e:2x2", Mesh(fsdp=4)), Spec(), ((65536, 2048), Spec()))
    with pytest.raises(HostMemoryError, match=r"150\.00 GiB of the host's memory.*offload less"):
        compile_for_tpu(program)
