"""What sets of flags change, from made-up reports."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from plan.reports import report
from rich.console import Console

from wholestep.errors import ConfigError
from wholestep.plan.flag_effects import Effect, Failure, effects, effects_view, sets_for
from wholestep.plan.isolated import CompilerError
from wholestep.plan.job import Job
from wholestep.plan.report import Report
from wholestep.xla.flag_sets import SETS

JOB = Job(recipe="llama3_debug", topology="v6e:2x2", flags=("bf16_emission",))
PLAIN = report()


def measure(job: Job, progress) -> Report:
    progress(1.0, 1)
    assert job.flags[0] == "bf16_emission"
    if "sparsecore_offload" in job.flags:
        raise CompilerError("the compiler crashed")
    if "latency_hiding" in job.flags:
        memory = replace(PLAIN.memory, needed=PLAIN.memory.needed * 2)
        return replace(PLAIN, memory=memory, speed=replace(PLAIN.speed, expected=PLAIN.speed.expected / 2))
    return PLAIN


def test_every_set_is_compared_with_none() -> None:
    asked = []
    found = effects(
        JOB,
        ["latency_hiding", "sparsecore_offload", "vmem_96m"],
        lambda what: lambda seconds, size: asked.append(what),
        measure,
    )
    assert asked == ["without a set", "with latency_hiding", "with sparsecore_offload", "with vmem_96m"]
    none, hiding, failed, vmem = found
    assert none == Effect.of("none", PLAIN)
    assert hiding == replace(none, name="latency_hiding", needed=none.needed * 2, expected=none.expected / 2)
    assert failed == Failure(name="sparsecore_offload", error="the compiler crashed")
    assert vmem == replace(none, name="vmem_96m")
    assert none.collectives == sum(it.count for it in PLAIN.traffic)
    assert none.live == sum(PLAIN.memory.by_kind.values()) < none.needed
    console = Console(file=io.StringIO(), width=160)
    console.print(effects_view(found))
    text = console.file.getvalue()
    assert "+100.0%" in text
    assert "-50.0%" in text
    assert text.count("%") == 2
    assert "sparsecore_offload: the compiler crashed" in text


def test_a_program_that_does_not_compile_without_a_set_is_an_error() -> None:
    def fails(job: Job, progress) -> Report:
        raise CompilerError("the compiler crashed")

    with pytest.raises(CompilerError, match="crashed"):
        effects(JOB, ["latency_hiding"], lambda what: lambda seconds, size: None, fails)


def test_sets_are_those_of_the_chip() -> None:
    assert set(SETS) - set(sets_for("v5e:2x2", ())) == {
        name for name, flag_set in SETS.items() if "v5e" not in flag_set.chips
    }
    assert sets_for("v6e:2x2", ["vmem_96m"]) == ("vmem_96m",)
    with pytest.raises(ConfigError, match="sparsecore_offload is not for v5e"):
        sets_for("v5e:2x2", ["sparsecore_offload"])
    with pytest.raises(ConfigError, match="latency_hidin is no set; did you mean 'latency_hiding'"):
        sets_for("v6e:2x2", ["latency_hidin"])
