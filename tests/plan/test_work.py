"""FLOPs and bytes of single instructions, by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from plan.hlo_text import find, module

from wholestep.plan.hlo import HBM, HOST, VMEM, Module
from wholestep.plan.work import bytes_moved, flops, only_moves


def moved(program: Module, name: str) -> dict[int, int]:
    return {space: size for space, size in bytes_moved(program, *find(program, name)).items() if size}


@pytest.mark.parametrize(
    ("left", "right", "out", "attributes", "expected"),
    [
        ("bf16[4,8]", "bf16[8,16]", "bf16[4,16]", "lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * 4 * 8 * 16),
        (
            "bf16[3,4,8]",
            "bf16[3,8,16]",
            "f32[3,4,16]",
            "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}",
            2 * 3 * 4 * 8 * 16,
        ),
        (
            "bf16[5,4,8]",
            "bf16[4,8,16]",
            "f32[5,16]",
            "lhs_contracting_dims={1,2}, rhs_contracting_dims={0,1}",
            2 * 5 * 32 * 16,
        ),
        ("f32[4]", "f32[6]", "f32[4,6]", "lhs_contracting_dims={}, rhs_contracting_dims={}", 2 * 4 * 6),
    ],
    ids=["matrices", "batched", "two contracted", "outer"],
)
def test_a_dot(left: str, right: str, out: str, attributes: str, expected: int) -> None:
    program = module(
        f"""%x = {left}{{0}} parameter(0)
        %y = {right}{{0}} parameter(1)
        ROOT %d = {out}{{0}} dot(%x, %y), {attributes}"""
    )
    assert flops(program, *find(program, "d")) == expected


# Left [batch, spatial..., input features], right [spatial..., input, output], window.
CONVOLUTIONS = {
    "matrix product": ((4, 8), (8, 16), "", {}),
    "one dimension": ((2, 10, 3), (3, 3, 5), "size=3", {}),
    "padded": ((2, 10, 3), (3, 3, 5), "size=3 pad=2_1", {"padding": [(2, 1)]}),
    "strided": ((2, 10, 3), (3, 3, 5), "size=3 stride=3 pad=4_0", {"window_strides": [3], "padding": [(4, 0)]}),
    "window dilated": (
        (2, 10, 3),
        (3, 3, 5),
        "size=3 pad=2_2 rhs_dilate=2",
        {"padding": [(2, 2)], "rhs_dilation": [2]},
    ),
    "batch of 64, as the compiler writes it": (
        (4, 64, 8),
        (64, 8, 16),
        "size=64 pad=63_63 rhs_reversal=1",
        {"padding": [(63, 63)]},
    ),
    "batch of 8, strided and dilated": (
        (4, 8, 8),
        (8, 8, 16),
        "size=8 stride=7 lhs_dilate=8",
        {"window_strides": [7], "lhs_dilation": [8]},
    ),
    "two batch dimensions": (
        (4, 6, 8, 8),
        (6, 8, 8, 16),
        "size=6x8 pad=5_5x0_0 stride=1x7 lhs_dilate=1x8 rhs_reversal=1x0",
        {"padding": [(5, 5), (0, 0)], "window_strides": [1, 7], "lhs_dilation": [1, 8]},
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_counts_products_with_elements_of_the_input_only(name: str) -> None:
    """The sum of a convolution of ones is the number of its products."""
    left, right, window, options = CONVOLUTIONS[name]
    spatial = "01"[: len(left) - 2]
    labels = f"b{spatial}f_{spatial}io->b{spatial}f"
    arguments = {"window_strides": [1] * len(spatial), "padding": [(0, 0)] * len(spatial), **options}
    letters = tuple(part.upper().replace("B", "N").replace("F", "C") for part in (f"b{spatial}f", f"{spatial}io"))
    numbers = jax.lax.conv_dimension_numbers(left, right, (letters[0], letters[1], letters[0]))
    out = jax.lax.conv_general_dilated(jnp.ones(left), jnp.ones(right), dimension_numbers=numbers, **arguments)
    dims = [",".join(map(str, shape)) for shape in (left, right, out.shape)]
    program = module(
        f"""%x = bf16[{dims[0]}]{{0}} parameter(0)
        %y = bf16[{dims[1]}]{{0}} parameter(1)
        ROOT %c = bf16[{dims[2]}]{{0}} convolution(%x, %y), window={{{window}}}, dim_labels={labels}"""
    )
    assert flops(program, *find(program, "c")) == 2 * int(out.sum())


def test_products_inside_of_what_is_called_count_once() -> None:
    dot = "dot({0}, {0}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    program = module(
        """%x = f32[8,8]{1,0} parameter(0)
        ROOT %f = f32[8,8]{1,0} fusion(%x), kind=kOutput, calls=%outer""",
        f"""outer
        %p = f32[8,8]{{1,0}} parameter(0)
        %inner.1 = f32[8,8]{{1,0}} fusion(%p), kind=kLoop, calls=%inner
        ROOT %d = f32[8,8]{{1,0}} {dot.format("%inner.1")}""",
        f"inner\n%q = f32[8,8]{{1,0}} parameter(0)\nROOT %d.2 = f32[8,8]{{1,0}} {dot.format('%q')}",
    )
    assert flops(program, *find(program, "f")) == 2 * (2 * 8**3)


def test_an_operation_reads_its_operands_and_writes_its_result_each_in_its_place() -> None:
    program = module(
        """%x = f32[8,128]{1,0} parameter(0)
        %y = f32[8,128]{1,0:S(1)} parameter(1)
        %z = f32[8,128]{1,0:S(1)} add(%x, %y)
        ROOT %t = (f32[8,128]{1,0:S(1)}) tuple(%z)"""
    )
    assert moved(program, "z") == {HBM: 4096, VMEM: 8192}
    assert moved(program, "t") == moved(program, "x") == {}


STACK, LAYER = 4 * 8 * 128 * 2, 8 * 128 * 2
FUSIONS = [
    "slice_layer\n%s = bf16[4,8,128]{2,1,0} parameter(0)\n%i = s32[] parameter(1)\n%z = s32[] constant(0)\n"
    "%d = bf16[1,8,128]{2,1,0} dynamic-slice(%s, %i, %z, %z), dynamic_slice_sizes={1,8,128}\n"
    "ROOT %b = bf16[8,128]{1,0} bitcast(%d)",
    "set_layer\n%s.2 = bf16[4,8,128]{2,1,0} parameter(0)\n%u = bf16[1,8,128]{2,1,0} parameter(1)\n"
    "%i.2 = s32[] parameter(2)\n"
    "ROOT %w = bf16[4,8,128]{2,1,0} dynamic-update-slice(%s.2, %u, %i.2, %i.2, %i.2)",
    "nested\n%s.3 = bf16[4,8,128]{2,1,0} parameter(0)\n%i.3 = s32[] parameter(1)\n"
    "%layer.3 = bf16[8,128]{1,0} fusion(%s.3, %i.3), kind=kLoop, calls=%slice_layer\n"
    "ROOT %m = bf16[8,128]{1,0} multiply(%layer.3, %layer.3)",
    "nested_set\n%s.4 = bf16[4,8,128]{2,1,0} parameter(0)\n%u.4 = bf16[1,8,128]{2,1,0} parameter(1)\n"
    "%i.4 = s32[] parameter(2)\n"
    "%set = bf16[4,8,128]{2,1,0} fusion(%s.4, %u.4, %i.4), kind=kLoop, calls=%set_layer\n"
    "ROOT %b.4 = bf16[4,8,128]{2,1,0} bitcast(%set)",
    "passes\n%s.5 = bf16[4,8,128]{2,1,0} parameter(0)\n%u.5 = bf16[1,8,128]{2,1,0} parameter(1)\n"
    "%n.5 = bf16[1,8,128]{2,1,0} negate(%u.5)\n"
    "ROOT %t.5 = (bf16[4,8,128]{2,1,0}, bf16[1,8,128]{2,1,0}) tuple(%s.5, %n.5)",
]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bf16[8,128]{1,0} fusion(%stack, %at), kind=kLoop, calls=%slice_layer", 2 * LAYER + 4),
        ("bf16[8,128]{1,0} fusion(%stack, %at), kind=kOutput, calls=%nested", 2 * LAYER + 4),
        ("bf16[4,8,128]{2,1,0} fusion(%stack, %layer, %at), kind=kLoop, calls=%set_layer", 2 * LAYER + 4),
        ("bf16[4,8,128]{2,1,0} fusion(%stack, %layer, %at), kind=kLoop, calls=%nested_set", 2 * LAYER + 4),
        ("(bf16[4,8,128], bf16[1,8,128]) fusion(%stack, %layer), kind=kLoop, calls=%passes", 2 * LAYER),
        ("bf16[4,8,128]{2,1,0} dynamic-update-slice(%stack, %layer, %at, %at, %at)", 2 * LAYER + 3 * 4),
        ("bf16[2,8,128]{2,1,0} slice(%stack), slice={[0:2], [0:8], [0:128]}", 2 * 2 * LAYER),
        ("bf16[4,8,128]{2,1,0} negate(%stack)", 2 * STACK),
    ],
    ids=[
        "slice",
        "slice in a nested fusion",
        "update",
        "update in a nested fusion",
        "passed on",
        "bare",
        "bare slice",
        "all",
    ],
)
def test_of_a_stack_what_is_sliced_or_set_counts(line: str, expected: int) -> None:
    program = module(
        f"""%stack = bf16[4,8,128]{{2,1,0}} parameter(0)
        %layer = bf16[1,8,128]{{2,1,0}} parameter(1)
        %at = s32[] parameter(2)
        ROOT %f = {line}""",
        *FUSIONS,
    )
    assert moved(program, "f") == {HBM: expected}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "(bf16[4,8,128]{2,1,0:S(1)}, bf16[4,8,128]{2,1,0}, u32[]{:S(2)}) copy-start(%stack)",
            {HBM: STACK, VMEM: STACK},
            id="copy",
        ),
        pytest.param(
            "((bf16[4,8,128]{2,1,0}), bf16[2,8,128]{2,1,0:S(1)}, s32[]{:S(2)}) slice-start(%stack), slice={[0:2]}",
            {HBM: 2 * LAYER, VMEM: 2 * LAYER},
            id="slice",
        ),
        pytest.param(
            "((bf16[4,8,128]{2,1,0:S(5)}, s32[], s32[], s32[]), bf16[1,8,128]{2,1,0}, u32[]{:S(2)}) "
            "dynamic-slice-start(%host, %at, %at, %at), dynamic_slice_sizes={1,8,128}",
            {HOST: LAYER, HBM: LAYER + 12},
            id="from the host",
        ),
        pytest.param(
            "((bf16[4,8,128]{2,1,0:S(5)}, bf16[1,8,128]{2,1,0}, s32[], s32[], s32[]), bf16[4,8,128]{2,1,0:S(5)}, "
            "u32[]{:S(2)}) dynamic-update-slice-start(%host, %layer, %at, %at, %at)",
            {HOST: LAYER, HBM: LAYER + 12},
            id="to the host",
        ),
        pytest.param(
            "((bf16[1,8,128]{2,1,0}, token[]), bf16[4,8,128]{2,1,0}) call-start(%layer, %token), to_apply=%gather",
            {HBM: LAYER + STACK},
            id="on the SparseCore",
        ),
        pytest.param(
            "(bf16[1,8,128]{2,1,0}, bf16[1,8,128]{2,1,0:S(1)}, u32[]{:S(2)}, u32[]{:S(2)}) "
            "collective-permute-start(%layer), source_target_pairs={{0,1}}",
            {HBM: LAYER, VMEM: LAYER},
            id="permutation",
        ),
        pytest.param("(bf16[1,8,128]{2,1,0}, u32[], token[]) send(%layer, %token)", {HBM: LAYER}, id="send"),
        pytest.param("bf16[4,8,128]{2,1,0} copy-done(%started)", {}, id="done"),
    ],
)
def test_what_goes_on_beside_counts_where_it_starts(line: str, expected: dict[int, int]) -> None:
    program = module(
        f"""%stack = bf16[4,8,128]{{2,1,0}} parameter(0)
        %layer = bf16[1,8,128]{{2,1,0}} parameter(1)
        %at = s32[] parameter(2)
        %host = bf16[4,8,128]{{2,1,0:S(5)}} parameter(3)
        %token = token[] after-all()
        %started = (bf16[4,8,128]{{2,1,0:S(1)}}, bf16[4,8,128]{{2,1,0}}, u32[]) copy-start(%stack)
        ROOT %s = {line}""",
        """gather
        %p = bf16[1,8,128]{2,1,0} parameter(0)
        %q = token[] parameter(1)
        ROOT %g = bf16[4,8,128]{2,1,0} all-gather(%p), dimensions={0}""",
    )
    assert moved(program, "s") == expected


@pytest.mark.parametrize(
    ("body", "moves"),
    [
        ("ROOT %r = f32[8]{0} transpose(%p), dimensions={0}", True),
        ("%z = f32[] constant(0)\nROOT %r = f32[9]{0} pad(%p, %z), padding=0_1", True),
        ("ROOT %r = f32[8]{0} negate(%p)", False),
        ("%n = f32[8]{0} negate(%p)\nROOT %r = f32[8]{0} copy(%n)", False),
    ],
)
@pytest.mark.parametrize("how", ["fusion(%x), kind=kLoop, calls=%inside", "call-start(%x), to_apply=%inside"])
def test_changes_of_layout_compute_nothing(body: str, moves: bool, how: str) -> None:
    program = module(
        f"%x = f32[8]{{0}} parameter(0)\nROOT %f = f32[8]{{0}} {how}", f"inside\n%p = f32[8]{{0}} parameter(0)\n{body}"
    )
    assert only_moves(program, find(program, "f")[1]) is moves
