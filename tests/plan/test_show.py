"""Reports on the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan.reports import GIB, LAYERS, report
from rich.console import Console, RenderableType

from wholestep.plan import units
from wholestep.plan.compare import comparison_view
from wholestep.plan.show import report_view


def printed(view: RenderableType, width: int = 140) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def lines_with(text: str, start: str) -> list[list[str]]:
    """The words of the lines that start so."""
    return [line.split() for line in text.splitlines() if line.strip().startswith(start)]


def test_a_report_holds_the_facts():
    whole = report()
    text = printed(report_view(whole))
    speed, memory = whole.speed, whole.memory
    for fact in (
        "llama3_8b", "8 slices of tpu7x:4x4x8, 1,024 chips, 2,048 devices, mesh replicate=8,fsdp=256",
        f"yes, with {units.gib(memory.available - memory.needed)} free",
        f"{units.seconds(speed.expected)} a step ({units.seconds(speed.low)} to {units.seconds(speed.high)})",
        f"MFU {speed.mfu:.1%}", "not measured", "874 TFLOP", "1.16 PFLOP", *speed.assumptions,
        *(it.shape for it in memory.largest[:10]), *(it.mend for it in whole.findings), *whole.findings[0].where,
        "57.6 ms a step",
    ):  # fmt: skip
        assert fact in text
    assert lines_with(text, "activations")[0][1:3] == units.gib(memory.by_kind["activations"]).split()
    assert lines_with(text, "DCN") == [
        ["DCN", "replicate", "all-reduce", "1", "0", "0.22", "GiB", "31.2", "ms", "26.6", "ms"]
    ]
    assert "shallow" not in text
    assert memory.largest[10].module not in text


def test_what_is_short_says_by_how_much_and_what_was_tried():
    short = report(fit=False)
    text = printed(report_view(short))
    assert f"no, {units.gib(short.memory.needed - short.memory.available)} short" in text
    assert [words[1] for words in lines_with(text, "layers.keep=nothing")] == ["yes"]
    assert [words[1] for words in lines_with(text, "optimizer.host=true")] == ["no"]


def test_a_shallow_compile_says_so():
    assert f"All figures are of {LAYERS} of 80 layers" in printed(report_view(report(whole_layers=80)))


def test_shares_of_memory_add_up_to_what_is_needed():
    whole = report()
    sizes = [words[-3] for words in lines_with(printed(report_view(whole)), "between buffers")]
    assert sizes == [f"{(whole.memory.needed - sum(whole.memory.by_kind.values())) / GIB:.2f}"]


def test_nothing_is_read_as_markup_and_nothing_is_lost_on_a_narrow_terminal():
    plain = report()
    finding = replace(plain.findings[0], where=("[bold]layers[/bold]",))
    text = printed(report_view(replace(plain, findings=(finding,), mesh="[red]fsdp=8")), width=80)
    assert "[bold]layers[/bold]" in text
    assert "[red]fsdp=8" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_comparison():
    a = report()
    twice = replace(a.memory, by_kind={**a.memory.by_kind, "activations": 2 * a.memory.by_kind["activations"]})
    slower = replace(a.speed, expected=a.speed.expected * 1.5)
    b = replace(a, memory=twice, speed=slower, findings=a.findings[1:], traffic=a.traffic[:2])
    text = printed(comparison_view(a, b))
    activations = a.memory.by_kind["activations"] / GIB
    assert lines_with(text, "activations")[0][1::2] == [
        f"{activations:.2f}", f"{2 * activations:.2f}", f"+{activations:.2f}", "2.000"
    ]  # fmt: skip
    assert lines_with(text, "step, expected")[0][-1] == "1.500"
    assert lines_with(text, "parameters")[0][-2:] == ["0", "1.000"]
    assert lines_with(text, "DCN replicate all-reduce: exposed")[0][-3:] == ["-26.6", "ms", "0.000"]
    only_a, only_b = text.split("Findings in a only")[1].split("Findings in b only")
    assert a.findings[0].what in only_a
    assert a.findings[1].what not in only_a
    assert only_b.strip() == "none"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.gib(24.5 * GIB), "24.50 GiB"), (units.gib(5 * 2**20), "5.00 MiB"), (units.gib(512), "0.50 KiB"),
        (units.gib(0), "0"), (units.seconds(1.606), "1.61 s"), (units.seconds(0.0356), "35.6 ms"),
        (units.seconds(4e-5), "40 µs"), (units.seconds(74.3), "74.3 s"), (units.seconds(0), "0"),
        (units.flops(874e12), "874 TFLOP"), (units.flops(1.161e15), "1.16 PFLOP"), (units.flops(0), "0"),
        (units.share(1, 4), "25.0%"), (units.share(0, 0), "-"),
    ],
)  # fmt: skip
def test_quantities(text: str, expected: str):
    assert text == expected
