"""What costs time that it need not, and what usually mends it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from plan.hlo_text import module
from plan.test_schedule import copy, cost, done, gather, run

from wholestep.plan.costs import Cost
from wholestep.plan.findings import Facts, findings
from wholestep.xla.chips import CHIPS
from wholestep.xla.flag_sets import SETS


def facts(schedule: list[Cost], options: Mapping[str, str], program_flops: int = 100, **seconds: float) -> Facts:
    return Facts(
        module("ROOT %p = f32[] parameter(0)"),
        schedule,
        run(schedule, **seconds),
        TPU7X,
        options,
        program_flops,
        graph_flops=100,
    )


TPU7X = next(chip for chip in CHIPS if chip.name == "tpu7x")
ALL = {name: value for each in SETS.values() for name, value in each.values.items()}


@pytest.mark.parametrize(
    ("schedule", "options", "kind", "mend"),
    [
        ([cost("g", "collective", axis="fsdp"), cost("m")], {}, "exposed collective", "--flag "),
        ([cost("g", "collective", axis="fsdp"), cost("m")], ALL, "exposed collective", "--set layers.gathered=kept"),
        ([gather("g"), cost("m"), done("g")], {}, "exposed collective", "--set layers.gathered=kept"),
        ([copy("c"), cost("m"), done("c", "host")], ALL, "host transfer", "--set layers.keep=recompute_all"),
        ([cost("c", "copy"), cost("m")], {}, "layout copy", ""),
    ],
    ids=["synchronous", "with every flag", "asynchronous", "host", "copy"],
)
def test_each_kind_and_its_mend(schedule: list[Cost], options: Mapping[str, str], kind: str, mend: str) -> None:
    (found,) = findings(facts(schedule, options, g=3, c=3, m=1))
    assert found.kind == kind and found.mend.startswith(mend) and bool(found.mend) == bool(mend)
    assert found.seconds == (3 if len(schedule) == 2 else 2)


def test_what_is_hidden_or_tiny_is_no_finding() -> None:
    assert findings(facts([gather("g"), cost("m"), done("g")], {}, g=1, m=2)) == ()
    assert findings(facts([cost("c", "copy"), cost("m")], {}, c=1e-4, m=1)) == ()


def test_recomputation_that_the_compiler_merged() -> None:
    (found,) = findings(facts([cost("m")], {}, program_flops=99, m=1))
    assert found.kind == "recomputation merged" and found.mend == "--set layers.execution=loop"
