"""How often loops run."""

from __future__ import annotations

import pytest
from plan.hlo_text import find, module

from wholestep.plan.hlo import Module
from wholestep.plan.trips import trips

CARRIED = "(s32[]{:T(128)}, s32[]{:T(128)}, f32[8]{0})"


def loop(start: str, condition: str, body: str, bound: str = "%bound = s32[] constant(6)") -> Module:
    """A loop over (counter `i`, `n`, data). `condition` and `body` name their results `goes` and `next`."""
    read = f"""%c = {CARRIED} parameter(0)
    %i = s32[] get-tuple-element(%c), index=0
    %n = s32[] get-tuple-element(%c), index=1
    %data = f32[8]{{0}} get-tuple-element(%c), index=2
    """
    return module(
        f"""%x = f32[8]{{0}} parameter(0)
        %argument = s32[] parameter(1)
        {start}
        {bound}
        %t = {CARRIED} tuple(%start, %bound, %x)
        ROOT %loop = {CARRIED} while(%t), condition=%condition, body=%body""",
        f"condition\n{read}{condition}",
        f"body\n{read}{body}\nROOT %r = {CARRIED} tuple(%next, %n, %data)",
        """advance
        %q = s32[] parameter(0)
        %two = s32[] constant(2)
        ROOT %a = s32[] add(%q, %two)""",
    )


LESS = "%six = s32[] constant(6)\nROOT %goes = pred[] compare(%i, %six), direction=LT"
STEP = "%one = s32[] constant(1)\n%next = s32[]{:T(128)} add(%i, %one)"
ZERO = "%start = s32[]{:T(128)} constant(0)"


@pytest.mark.parametrize(
    ("start", "condition", "body", "expected"),
    [
        pytest.param(ZERO, LESS, STEP, 6, id="up by 1"),
        pytest.param("%start = s32[] constant(2)", LESS, STEP, 4, id="from 2"),
        pytest.param("%start = s32[] constant(7)", LESS, STEP, 0, id="never"),
        pytest.param(ZERO, LESS, "%next = s32[] fusion(%i), kind=kLoop, calls=%advance", 3, id="up by 2, in a fusion"),
        pytest.param(
            "%start = s32[] constant(1)", LESS, "%two = s32[] constant(2)\n%next = s32[] add(%two, %i)", 3, id="1, 3, 5"
        ),
        pytest.param(
            "%start = s32[] constant(5)",
            "%z = s32[] constant(0)\nROOT %goes = pred[] compare(%i, %z), direction=GE",
            "%one = s32[] constant(1)\n%next = s32[] subtract(%i, %one)",
            6,
            id="down to 0",
        ),
        pytest.param(
            "%start = s32[] constant(-4)",
            "%z = s32[] constant(0)\nROOT %goes = pred[] compare(%i, %z), direction=NE",
            STEP,
            4,
            id="negative start",
        ),
        pytest.param(
            ZERO, "ROOT %goes = pred[] compare(%i, %n), direction=LT", STEP, 6, id="bound carried through the tuple"
        ),
        pytest.param(
            ZERO,
            "%k = s32[] copy(%n)\nROOT %goes = pred[] compare(%k, %i), direction=GT",
            STEP,
            6,
            id="bound first, copied",
        ),
        pytest.param(
            ZERO,
            """%six = s32[] constant(6)
            %small = pred[] compare(%i, %six), direction=LT
            %three = s32[] constant(3)
            %smaller = pred[] compare(%i, %three), direction=LT
            ROOT %goes = pred[] and(%small, %smaller)""",
            STEP,
            3,
            id="two conditions",
        ),
        pytest.param("%start = s32[] copy(%argument)", LESS, STEP, None, id="start is an argument"),
        pytest.param(ZERO, LESS, "%next = s32[] reduce(%data, %i)", None, id="step depends on data"),
        pytest.param(ZERO, "ROOT %goes = pred[] reduce(%data, %i)", STEP, None, id="end depends on data"),
    ],
)
def test_counters_are_run(start: str, condition: str, body: str, expected: int | None) -> None:
    program = loop(start, condition, body)
    assert trips(program, *find(program, "loop")) == expected


def test_a_bound_that_is_an_argument_is_unknown() -> None:
    carried = loop(
        ZERO, "ROOT %goes = pred[] compare(%i, %n), direction=LT", STEP, bound="%bound = s32[] copy(%argument)"
    )
    assert trips(carried, *find(carried, "loop")) is None


@pytest.mark.parametrize(("start", "expected"), [("%zero", 3), ("%i", None)], ids=["own start", "outer counter"])
def test_an_inner_loop_has_its_own_trips(start: str, expected: int | None) -> None:
    inner = "(s32[])"
    program = module(
        """%zero.1 = s32[] constant(0)
        %t = (s32[]) tuple(%zero.1)
        ROOT %outer = (s32[]) while(%t), condition=%few, body=%outer_body""",
        f"""outer_body
        %p = (s32[]) parameter(0)
        %i = s32[] get-tuple-element(%p), index=0
        %zero = s32[] constant(0)
        %t.2 = (s32[]) tuple({start})
        %inner = (s32[]) while(%t.2), condition=%few.2, body=%inner_body
        %one = s32[] constant(1)
        %i.2 = s32[] add(%i, %one)
        ROOT %r = {inner} tuple(%i.2)""",
        """inner_body
        %p.2 = (s32[]) parameter(0)
        %j = s32[] get-tuple-element(%p.2), index=0
        %one.2 = s32[] constant(1)
        %j.2 = s32[] add(%j, %one.2)
        ROOT %r.2 = (s32[]) tuple(%j.2)""",
        *(
            f"""few{n}
            %p.3{n} = (s32[]) parameter(0)
            %k{n} = s32[] get-tuple-element(%p.3{n}), index=0
            %bound{n} = s32[] constant({count})
            ROOT %goes{n} = pred[] compare(%k{n}, %bound{n}), direction=LT"""
            for n, count in (("", 5), (".2", 3))
        ),
    )
    assert trips(program, *find(program, "outer")) == 5
    assert trips(program, *find(program, "inner")) == expected
