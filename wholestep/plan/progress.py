"""How far a compilation is, for people who wait: in place on a terminal, line by line in a log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.status import Status
from rich.text import Text

from wholestep.plan import units

Show = Callable[[str], Callable[[float, int], None]]
"""Told what is compiled next; its answer is told, twice a second, seconds and bytes of this machine's memory."""

_LINE_SECONDS = 30.0


@contextlib.contextmanager
def compiling(console: Console) -> Iterator[Show]:
    """Show what is compiled while the context lasts."""
    if console.is_terminal:
        with Status("starting", console=console) as status:
            yield lambda what: lambda seconds, size: status.update(Text(_now(what, seconds, size)))
        return

    def show(what: str) -> Callable[[float, int], None]:
        due = _LINE_SECONDS

        def tell(seconds: float, size: int) -> None:
            nonlocal due
            if seconds >= due:
                due = seconds + _LINE_SECONDS
                console.print(_now(what, seconds, size), highlight=False, markup=False, soft_wrap=True)

        return tell

    yield show


def _now(what: str, seconds: float, size: int) -> str:
    return f"compiling {what}: {units.compiling(seconds, size)}"
