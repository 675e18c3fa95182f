"""What is said of a compilation while it goes on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from wholestep.plan import planner
from wholestep.plan.isolated import CompilerError
from wholestep.plan.job import Job
from wholestep.plan.progress import compiling


def test_a_log_has_a_line_every_half_minute() -> None:
    log = Console(file=io.StringIO(), width=20)
    with compiling(log) as show:
        for what in ("this", "[that]"):
            tell = show(what)
            for tenth in range(700):
                tell(tenth / 10, 2**30)
    minute = [f"compiling {what}: {seconds} s" for what in ("this", "[that]") for seconds in (30, 60)]
    assert log.file.getvalue().splitlines() == [f"{start}, 1.00 GiB of this machine's memory" for start in minute]


def test_a_terminal_is_told_in_place() -> None:
    terminal = Console(file=io.StringIO(), width=100, force_terminal=True)
    with compiling(terminal) as show:
        show("[this]")(3.0, 2**30)
    assert "compiling [this]: 3 s, 1.00 GiB of this machine's memory" in terminal.file.getvalue()


@pytest.mark.parametrize(("topology", "is_said"), [("v6e:2x2", True), ("v6e:16x16", False)])
def test_what_cannot_fit_is_said_before_it_is_compiled(monkeypatch, topology: str, is_said: bool) -> None:
    def refuse(*_: object) -> None:
        raise CompilerError("not now")

    monkeypatch.setattr(planner, "compile_isolated", refuse)
    log = Console(file=io.StringIO())
    with pytest.raises(CompilerError):
        planner.plan_with_progress(Job.of("llama3_70b", topology), log)
    said = log.file.getvalue()
    assert ("by arithmetic llama3_70b does not fit" in said and "32.00 GiB" in said) == is_said
