"""From a compiled step to a report: memory, time, traffic, findings."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

from rich.console import Console

from wholestep.errors import WholestepError
from wholestep.pipeline import Recipe
from wholestep.plan import findings as rules
from wholestep.plan import time_model, units
from wholestep.plan.arithmetic import least_bytes
from wholestep.plan.compiled import Compiled
from wholestep.plan.costs import Schedule, costs, walk
from wholestep.plan.hlo import HBM, HOST
from wholestep.plan.isolated import compile_isolated
from wholestep.plan.job import Job
from wholestep.plan.memory import MemoryReader
from wholestep.plan.progress import compiling
from wholestep.plan.remedies import remedies_of
from wholestep.plan.report import Finding, Operator, Remedy, Report, Speed, Traffic, Work
from wholestep.plan.schedule import Timeline, timeline
from wholestep.plan.time_model import CASES, Constant, TimeModel
from wholestep.recipes.registry import find
from wholestep.xla.chips import Chip
from wholestep.xla.topologies import topology_chip

_IN_WORDS: dict[Work, str] = {
    "matmul": "matrix products",
    "kernel": "Pallas kernels",
    "elementwise": "memory traffic of element-wise work",
    "copy": "copies within memory",
    "collective": "waiting for other devices",
    "host": "waiting for the host's memory",
}


def plan(job: Job, compiled: Compiled) -> Report:
    """Read what the compiler made of a job."""
    recipe, chip = job.build(), topology_chip(job.topology)
    facts = compiled.facts
    kernels = {(module, operator): count for module, operator, count in facts["kernels"]}
    schedule = costs(compiled.module, job.mesh(recipe), chip, kernels)
    lines = {case: timeline(schedule, TimeModel(chip, case)) for case in CASES}
    likely = lines["likely"]
    analysis = facts["memory_analysis"] or {"host_temporaries": 0, "code": 0}
    program_flops = sum(cost.flops * times for cost, times in walk(schedule))
    return Report(
        recipe=job.recipe,
        overrides=(*job.fitting(), *job.overrides),
        topology=job.topology,
        slices=job.slices,
        chips=job.chips,
        devices=job.devices,
        mesh=str(recipe.mesh),
        layers=len(recipe.model.layers),
        whole_layers=len(find(job.recipe).function().model.layers),
        options=facts["options"],
        versions=facts["versions"],
        compile_seconds=facts["compile_seconds"],
        memory=MemoryReader(compiled.module, compiled.assignment).memory(
            facts["available"], analysis["host_temporaries"], analysis["code"], likely.moments
        ),
        speed=_speed(recipe, chip, schedule, lines["best"].seconds, likely, lines["worst"].seconds, program_flops),
        traffic=_traffic(likely),
        spans=likely.spans(),
        loops=tuple(likely.loops),
        operators=_operators(likely),
        findings=(
            *rules.findings(
                rules.Facts(compiled.module, schedule, likely, chip, facts["options"], program_flops, facts["flops"])
            ),
            *(Finding(kind="capture", what=note, where=(), seconds=0.0, mend="") for note in facts["notes"]),
        ),
    )


def plan_with_progress(job: Job, console: Console, remedies: bool = True) -> Report:
    """Compile a job, read it, and, if it does not fit, compile what would make it fit; say on `console` how far it is.

    Raises:
        WholestepError: as of `compile_isolated`.
    """
    least, memory = least_bytes(job.build()), topology_chip(job.topology).hbm_bytes
    if least > memory:
        console.print(
            f"by arithmetic {job.recipe} does not fit: it needs at least {units.gib(least)}, and a device has "
            f"{units.gib(memory)}; the compiler, which takes minutes, is asked by how much, and what fits",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    with compiling(console) as show:
        report = plan(job, compile_isolated(job, show(f"{job.recipe} for {job.topology}")))
        if report.memory.fits or not remedies:
            return report
        tried = []
        for override in remedies_of(job.build()):
            other = job.with_overrides(override)
            with contextlib.suppress(WholestepError):  # too large even to be placed: no remedy
                result = plan(other, compile_isolated(other, show(f"with {override}")))
                used, expected = result.memory, result.speed.expected
                tried.append(Remedy(override=override, needed=used.needed, fits=used.fits, expected=expected))
    return dataclasses.replace(report, remedies=tuple(tried))


def _speed(
    recipe: Recipe, chip: Chip, schedule: Schedule, low: float, likely: Timeline, high: float, program_flops: int
) -> Speed:
    tokens = recipe.batch_size * recipe.sequence_length
    model_flops = tokens * recipe.model.flops_per_token(recipe.sequence_length) / recipe.mesh.size
    terms = likely.terms()
    return Speed(
        low=low,
        expected=likely.seconds,
        high=high,
        terms=terms,
        bound_by=_IN_WORDS[next(iter(terms))],
        model_flops=round(model_flops),
        hardware_flops=program_flops,
        hbm_bytes=sum(cost.moved.get(HBM, 0) * times for cost, times in walk(schedule)),
        host_bytes=sum(cost.moved.get(HOST, 0) * times for cost, times in walk(schedule)),
        mfu=model_flops / likely.seconds / (chip.peak_flops / chip.devices),
        tokens_per_second_per_chip=tokens / likely.seconds / (recipe.mesh.size / chip.devices),
        assumptions=_assumptions(chip, schedule),
    )


def _assumptions(chip: Chip, schedule: Schedule) -> tuple[str, ...]:
    """Those that this program's time rests on."""
    used = [cost for cost, _ in walk(schedule)]
    collectives = [cost.collective for cost in used if cost.collective is not None]
    kernels = {time_model.kernel_efficiency(cost) for cost in used if cost.work == "kernel"}
    guessed = [cost for cost in used if cost.work == "matmul" and cost.instruction.estimated_cycles is None]
    wanted: Sequence[tuple[Constant, object]] = (
        (time_model.MATMUL, guessed),
        (time_model.ATTENTION, time_model.ATTENTION in kernels),
        (time_model.GROUPED, time_model.GROUPED in kernels),
        (time_model.MEMORY, used),
        (time_model.VECTOR_MEMORY, used),
        (time_model.LINKS, collectives),
        (time_model.HOP, collectives),
        (time_model.DATA_CENTER, [each for each in collectives if each.group.slices > 1]),
        (time_model.HOST_LINK, [cost for cost in used if cost.work == "host"]),
        (time_model.OVERHEAD, used),
    )
    slow, fast = chip.clock_hz
    clock = f"clock: {slow / 1e9:g} GHz" if slow == fast else f"clock: between {slow / 1e9:g} and {fast / 1e9:g} GHz"
    return (
        f"{clock}, inferred from the peak and the compiler's cycles",
        *(str(constant) for constant, needed in wanted if needed),
        "transfers share only their own lane: those over links, to the host and within memory do not slow each other "
        "or the core",
        "every device takes as long as every other, and the first trip of a loop as long as the rest",
    )


def _traffic(line: Timeline) -> tuple[Traffic, ...]:
    found: dict[tuple[str, tuple[str, ...], str], Traffic] = {}
    for each in line.timed:
        sent = each.cost.collective
        if sent is None:
            continue
        key = sent.operation, sent.group.axes, sent.group.network
        before = found.get(key)
        found[key] = Traffic(
            operation=sent.operation,
            axes=sent.group.axes,
            network=sent.group.network,
            count=each.times + (before.count if before else 0),
            size=sent.size * each.times + (before.size if before else 0),
            asynchronous=each.times * each.waits + (before.asynchronous if before else 0),
            seconds=(each.end - each.start) * each.times + (before.seconds if before else 0.0),
            exposed=each.exposed * each.times + (before.exposed if before else 0.0),
        )
    return tuple(sorted(found.values(), key=lambda traffic: -traffic.size))


def _operators(line: Timeline) -> tuple[Operator, ...]:
    found: dict[tuple[str, Work], Operator] = {}
    for each in line.timed:
        module = rules.module_name(each.cost, each.times)
        key = module, each.cost.work
        before = found.get(key)
        found[key] = Operator(
            module=module,
            work=each.cost.work,
            seconds=each.exposed * each.times + (before.seconds if before else 0.0),
            flops=each.cost.flops * each.times + (before.flops if before else 0),
            hbm_bytes=each.cost.moved.get(HBM, 0) * each.times + (before.hbm_bytes if before else 0),
            count=each.times + (before.count if before else 0),
        )
    return tuple(sorted(found.values(), key=lambda operator: -operator.seconds))
