"""Parsing the text of a compiled program."""

from __future__ import annotations

import pytest
from plan.hlo_text import computation, find, module

from wholestep.plan.hlo import HBM, HOST, VMEM, Array, parse, parse_arrays

KERNEL = """HloModule jit_run, is_scheduled=true

FileNames
1 "attention.py"

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[]{:T(128)} parameter(0)
  %y = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

ENTRY %main.1_spmd (p.0: f32[8,128], p.1: f32[8,128]) -> (f32[8,128], s32[]) {
  %p.1 = f32[8,128]{1,0:T(8,128)} parameter(1)
  %p.0 = f32[8,128]{1,0:T(8,128)} parameter(0), metadata={op_name="state[\\'parameter/w\\']"}
  %kernel.1 = (f32[8,128]{1,0:S(1)}, s32[], /*index=2*/u32[]) custom-call(%p.0, /*index=1*/%p.1), \
custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 2048, \\"layout\\": 1}"
}}, metadata={op_name="jit(run)/a[k.py,3,op]"}, backend_config={"config":{"body":"TUzv","estimated_cycles":"12"}}
  %zero = s32[] constant(0)
  ROOT %result = (f32[8,128]{1,0}, s32[]) tuple(%p.1, %zero), backend_config={"estimated_cycles":"9223372036854775807"}
}
"""


@pytest.mark.parametrize(
    ("text", "array", "size"),
    [
        ("bf16[4,128]{1,0:T(8,128)(2,1)S(1)}", Array("bf16", (4, 128), VMEM), 1024),
        ("f32[2,3]{0,1}", Array("f32", (2, 3), HBM), 24),
        ("bf16[4,16]{1,0:T(8,128)(2,1)S(5)}", Array("bf16", (4, 16), HOST), 128),
        ("pred[7]{0:T(1024)(128)(4,1)}", Array("pred", (7,), HBM), 7),
        ("s4[3]{0}", Array("s4", (3,), HBM), 2),
        ("f8e4m3fn[5,5]{1,0}", Array("f8e4m3fn", (5, 5), HBM), 25),
        ("c64[2]{0}", Array("c64", (2,), HBM), 16),
        ("s32[<=8]{0}", Array("s32", (8,), HBM), 32),
        ("s32[]{:T(128)S(6)}", Array("s32", (), 6), 4),
        ("token[]", Array("token", ()), 0),
    ],
)
def test_arrays_have_a_type_a_size_and_a_place(text: str, array: Array, size: int) -> None:
    assert parse_arrays(text) == (array,)
    assert array.size == size


def test_tuples_are_read_flat_past_comments() -> None:
    arrays = parse_arrays("((bf16[2]{0}, token[]), f32[3]{0:S(1)}, s32[], s32[], /*index=5*/u32[4]{0:S(5)})")
    assert [(array.dtype, array.dims, array.space) for array in arrays] == [
        ("bf16", (2,), HBM),
        ("token", (), HBM),
        ("f32", (3,), VMEM),
        ("s32", (), HBM),
        ("s32", (), HBM),
        ("u32", (4,), HOST),
    ]


def test_metadata_of_several_lines_belongs_to_its_instruction() -> None:
    program = parse(KERNEL)
    assert list(program.computations) == ["add", "main.1_spmd"]
    assert [each.name for each in program.entry.instructions] == ["p.1", "p.0", "kernel.1", "zero", "result"]
    kernel = program.entry.by_name["kernel.1"]
    assert (kernel.opcode, kernel.operands, len(kernel.arrays)) == ("custom-call", ("p.0", "p.1"), 3)
    assert kernel.attribute("custom_call_target") == "tpu_custom_call"
    assert kernel.op_name == "jit(run)/a[k.py,3,op]"
    assert kernel.estimated_cycles == 12
    assert program.entry.root.name == "result" and program.entry.root.estimated_cycles is None
    assert [each.name for each in program.entry.parameters] == ["p.0", "p.1"]
    assert [each.name for each in program.entry.users["p.1"]] == ["kernel.1", "result"]


def test_attributes_in_quotes_in_braces_and_bare() -> None:
    attributes = 'channel_id=4, slice={[0:4], [2:6]}, nested={{0,1},{2,3}}, frontend_attributes={a="x, {y}",b="z"}'
    _, send = find(module(f"%p = f32[] parameter(0)\n%s = f32[] send(%p), {attributes}"), "s")
    assert send.attribute("channel_id") == "4"
    assert send.attribute("slice") == "{[0:4], [2:6]}"
    assert send.attribute("nested") == "{{0,1},{2,3}}"
    assert (send.attribute("a"), send.attribute("b"), send.attribute("missing")) == ("x, {y}", "z", None)


@pytest.mark.parametrize(
    ("line", "called"),
    [
        ("fusion(%p), kind=kLoop, calls=%one", ["one"]),
        ("async-start(%p), calls=%one", ["one"]),
        ("call(%p), to_apply=%one", ["one"]),
        ('call-start(%p), async_execution_thread="sparsecore", to_apply=%one', ["one"]),
        ("conditional(%p, %p, %p), branch_computations={%one, %two}", ["one", "two"]),
        ("all-reduce(%p), to_apply=%one", []),
        ("add(%p, %p)", []),
    ],
)
def test_what_an_instruction_runs_is_known(line: str, called: list[str]) -> None:
    inside = "ROOT %{0} = f32[] parameter(0)"
    program = module(
        f"%p = f32[] parameter(0)\nROOT %r = f32[] {line}", *(f"{n}\n{inside.format(n + 'p')}" for n in ("one", "two"))
    )
    assert [each.name for each in program.called(program.entry.root)] == called


def test_computations_of_other_threads_end_where_they_end() -> None:
    sparse = computation(
        "gather", "ROOT %g = bf16[8]{0} all-gather(%x), dimensions={0}", '}, execution_thread="sparsecore"'
    )
    main = computation("main", "ROOT %r = bf16[8]{0} parameter(0)")
    program = parse(f"HloModule m\n\n{sparse}\n\nENTRY {main}\n")
    assert list(program.computations) == ["gather", "main"]
    assert program.computations["gather"].root.attribute("dimensions") == "{0}"


def test_the_start_of_something_is_that_operation() -> None:
    _, start = find(module("%p = f32[] parameter(0)\n%s = (f32[], f32[]) all-gather-start(%p)"), "s")
    assert (start.opcode, start.operation) == ("all-gather-start", "all-gather")
