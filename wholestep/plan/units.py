"""Quantities and what goes with them as people read them, in the terminal and on the page."""

from __future__ import annotations

from wholestep.plan.report import Memory, Report


def topology(report: Report) -> str:
    """`8 slices of tpu7x:4x4x8`."""
    return f"{report.slices} slices of {report.topology}" if report.slices > 1 else report.topology


def shallow_note(report: Report) -> str:
    """What to know of a shallow compile's figures; empty for a whole one."""
    if report.layers >= report.whole_layers:
        return ""
    return f"All figures are of {report.layers} of {report.whole_layers} layers: a shallow copy was compiled."


def at_the_peak(memory: Memory) -> list[tuple[str, int]]:
    """What makes up the memory that is needed, the largest first, and last what lies between buffers."""
    return [*memory.by_kind.items(), ("between buffers", memory.needed - sum(memory.by_kind.values()))]


def gib(size: float) -> str:
    """Bytes in GiB; what would read as nothing in MiB or KiB."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if abs(size) >= unit / 100:
            return f"{size / unit:,.2f} {name}"
    return f"{size / 2**10:.2f} KiB" if size else "0"


def seconds(value: float) -> str:
    """Seconds with three digits: `1.61 s`, `35.6 ms`, `40 µs`."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if abs(value) >= unit:
            return f"{_three_digits(value / unit)} {name}"
    return f"{_three_digits(value / 1e-6)} µs" if value else "0"


def flops(value: float) -> str:
    """FLOPs with three digits: `874 TFLOP`."""
    for unit, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= unit:
            return f"{_three_digits(value / unit)} {name}FLOP"
    return f"{value:,.0f} FLOP" if value else "0"


def share(part: float, whole: float) -> str:
    """`35.1%`; `-` where there is nothing to have a share of."""
    return f"{part / whole:.1%}" if whole else "-"


def _three_digits(value: float) -> str:
    """Without an exponent, and without zeros that say nothing."""
    digits = max(0, 3 - len(str(int(abs(value)))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def compiling(taken: float, size: int) -> str:
    """How far a compilation is: what it took of time and of this machine's memory."""
    return f"{taken:.0f} s, {gib(size)} of this machine's memory"
