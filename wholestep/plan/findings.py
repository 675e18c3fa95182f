"""What in a compiled schedule costs time that it need not: one function a rule.

A rule takes what is known of the program and gives its findings; `RULES` lists them. What costs less than a thousandth
of the step is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from wholestep.plan.costs import Cost, Schedule, loops
from wholestep.plan.hlo import Module
from wholestep.plan.report import Finding
from wholestep.plan.schedule import Timed, Timeline, network_lane
from wholestep.xla.chips import Chip
from wholestep.xla.flag_sets import SETS

_FEWER_BYTES = {
    "all-gather": "--set layers.gathered=kept",
    "reduce-scatter": "--set precision.reduce=bfloat16",
    "all-reduce": "--set precision.reduce=bfloat16",
}
"""Settings under which an operation sends less: weights gathered once, gradients reduced in half the bytes."""

_SHARE = 1e-3
_WHERE = 5


@dataclass(frozen=True)
class Facts:
    """Attributes:
    module: the compiled program.
    schedule: its costs.
    line: in time.
    chip: that it is for.
    options: compiler flags that it was made with.
    program_flops: as the program computes them.
    graph_flops: as the captured step does, what is to be computed again with it.
    """

    module: Module
    schedule: Schedule
    line: Timeline
    chip: Chip
    options: Mapping[str, str]
    program_flops: int
    graph_flops: int


Rule = Callable[[Facts], Iterator[Finding]]


def findings(facts: Facts) -> tuple[Finding, ...]:
    """What all rules find, the most expensive first."""
    found = [finding for rule in RULES for finding in rule(facts)]
    return tuple(sorted(found, key=lambda finding: -finding.seconds))


def exposed_collectives(facts: Facts) -> Iterator[Finding]:
    """Those that the device waits for, by operation and axes, those that run beside other work apart."""
    groups: dict[tuple[str, str, bool], list[Timed]] = {}
    for each in facts.line.timed:
        if each.cost.collective is not None and each.exposed > 0:
            sent = each.cost.collective
            key = sent.operation, network_lane(sent), each.waits
            groups.setdefault(key, []).append(each)
    for (operation, network, waits), timed in groups.items():
        how = "asynchronous, but longer than what runs beside it" if waits else "synchronous: nothing runs beside it"
        flags = "" if waits else _sets(facts, "latency_hiding", "async_all_gather", "sparsecore_offload")
        mend = flags or _FEWER_BYTES.get(operation, "")
        yield from _finding(facts, "exposed collective", f"{operation} over {network} is {how}", timed, mend)


def gathers_as_all_reduces(facts: Facts) -> Iterator[Finding]:
    """All-gathers and reduce-scatters that the compiler turned into all-reduces, which send twice as much."""
    for operator, what, mend in (
        ("all_gather", "an all-gather became an all-reduce of zeros with one part filled in", ("async_all_gather",)),
        ("reduce_scatter", "a reduce-scatter became an all-reduce, of which each device keeps its part", ()),
    ):
        turned = [
            each
            for each in facts.line.timed
            if each.cost.collective is not None
            and each.cost.collective.operation == "all-reduce"
            and operator in each.cost.origin.operator
        ]
        advice = _sets(facts, *mend) if mend else "rows of each device's shard that are a multiple of 8 avoid it"
        yield from _finding(
            facts, f"{operator.replace('_', '-')} as all-reduce", f"{what}: twice the bytes", turned, advice
        )


def layout_copies(facts: Facts) -> Iterator[Finding]:
    """Copies that the core makes to change a layout or to move something."""
    copies = [each for each in facts.line.timed if each.cost.work == "copy" and not each.cost.starts]
    yield from _finding(facts, "layout copy", "the core copies arrays into another layout or place", copies, "")


def fp32_matmuls(facts: Facts) -> Iterator[Finding]:
    """Products of fp32 arrays, which the matrix unit takes in several passes."""
    found = [each for each in facts.line.timed if each.cost.work == "matmul" and _is_fp32(facts.module, each.cost)]
    yield from _finding(
        facts,
        "fp32 matmul",
        "products of fp32 arrays take several passes of the matrix unit",
        found,
        "--set precision.gather=bfloat16, or a cast of both factors in the module",
    )


def merged_recomputation(facts: Facts) -> Iterator[Finding]:
    """Where the program computes less than the step says, the compiler has merged what was to be computed again with
    the first time, and keeps its result."""
    missing = facts.graph_flops - facts.program_flops
    if missing > 0.005 * facts.graph_flops:
        yield Finding(
            kind="recomputation merged",
            what=f"{missing / facts.graph_flops:.1%} of the step's FLOPs are not in the program: what was to be "
            "computed again was merged with the first time, so its memory is not freed",
            where=(),
            seconds=0.0,
            mend="--set layers.execution=loop",
        )


def host_transfers(facts: Facts) -> Iterator[Finding]:
    """Transfers to and from the host's memory that the device waits for."""
    waits = [each for each in facts.line.timed if each.cost.work == "host" and each.exposed > 0]
    mend = _sets(facts, "host_offload") or "--set layers.keep=recompute_all"
    yield from _finding(facts, "host transfer", "the device waits for the host's memory", waits, mend)


def unknown_loops(facts: Facts) -> Iterator[Finding]:
    """Loops whose number of trips depends on data: they are counted once."""
    for loop in loops(facts.schedule):
        if not loop.known:
            yield Finding(
                kind="unknown loop",
                what="how often a loop runs depends on data; its body is counted once in all figures",
                where=(loop.origin.module or loop.instruction.name,),
                seconds=0.0,
                mend="",
            )


RULES: tuple[Rule, ...] = (
    exposed_collectives,
    gathers_as_all_reduces,
    layout_copies,
    fp32_matmuls,
    merged_recomputation,
    host_transfers,
    unknown_loops,
)


def _finding(facts: Facts, kind: str, what: str, timed: Iterable[Timed], mend: str) -> Iterator[Finding]:
    """One finding for all of these, if together they cost something."""
    seconds: dict[str, float] = {}
    for each in timed:
        where = place(each.cost, each.times)
        seconds[where] = seconds.get(where, 0.0) + each.exposed * each.times
    total = sum(seconds.values())
    if total > _SHARE * facts.line.seconds:
        worst = sorted(seconds, key=lambda where: -seconds[where])[:_WHERE]
        yield Finding(kind=kind, what=what, where=tuple(worst), seconds=total, mend=mend)


def place(cost: Cost, times: int) -> str:
    """`layers.*.attention.q_proj (attention.py:171)`."""
    name = module_name(cost, times)
    return f"{name} ({cost.origin.line})" if cost.origin.line else name


def module_name(cost: Cost, times: int) -> str:
    """`layers.*.attention.q_proj`; the operator's or the instruction's name where the module is unknown. The body of a
    loop, or of layers that are laid out alike, is that of all of them."""
    several = times > 1 or cost.origin.shared
    module = re.sub(r"\.\d+(?=\.|$)", ".*", cost.origin.module, count=1) if several else cost.origin.module
    return module or (f"optimizer or loss, {cost.origin.operator}" if cost.origin.operator else cost.instruction.name)


def _sets(facts: Facts, *names: str) -> str:
    """The sets among these that change something on the chip and were not given, as an option."""
    fitting = [
        name
        for name in names
        if facts.chip.name in SETS[name].chips
        and facts.chip.name not in SETS[name].anyway
        and not SETS[name].values.items() <= facts.options.items()
    ]
    return f"--flag {','.join(fitting)}" if fitting else ""


def _is_fp32(module: Module, cost: Cost) -> bool:
    if cost.instruction.opcode in ("convolution", "dot"):
        return False  # outside of a fusion its factors are not at hand here; the compiler fuses all large ones
    for inside in module.called(cost.instruction):
        for each in inside.instructions:
            if each.opcode in ("convolution", "dot"):
                return all(factor.arrays[0].dtype == "f32" for factor in inside.operands(each))
    return False
