"""What is said of a compilation while it goes on."""

from __future__ import annotations

import io

from rich.console import Console

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
