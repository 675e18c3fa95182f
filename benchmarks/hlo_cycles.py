"""The TPU compiler's own estimate of a scheduled program: cycles, by the module that they are spent in.

It gives estimates for fusions, products and copies; none for collectives, transfers to the host and Pallas kernels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

_COMPUTATION = re.compile(r"^(ENTRY )?%?(?P<name>\S+) \(.*\{$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_WHILE = re.compile(r" while\(.*condition=%?(?P<condition>[\w.\-]+), body=%?(?P<body>[\w.\-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_NONE = 2**63 - 1  # what the compiler writes where it has no estimate


def cycles_by_module(hlo: str) -> Counter[str]:
    """Path of a module (`""` for what belongs to none) -> cycles of one device's step, loops with all their trips."""
    computations: dict[str, list[str]] = {}
    entry, name = "", ""
    for line in hlo.splitlines():
        if match := _COMPUTATION.match(line):
            name = match["name"]
            computations[name] = []
            entry = name if match[1] else entry
        elif name:
            computations[name].append(line)
    total: Counter[str] = Counter()
    for path, cycles in _walk(computations, entry, 1):
        total[path] += cycles
    return total


def _walk(computations: dict[str, list[str]], name: str, times: int) -> Iterator[tuple[str, int]]:
    for line in computations[name]:
        if match := _WHILE.search(line):
            trips = _trips(computations[match["condition"]])
            yield from _walk(computations, match["body"], times * trips)
        elif (found := _CYCLES.search(line)) and int(found[1]) < _NONE:
            operation = _OP_NAME.search(line)
            yield _module(operation[1] if operation else ""), times * int(found[1])


def _trips(condition: list[str]) -> int:
    """What the counter is compared with: our loops count from 0 by 1."""
    constants = {
        match[1]: int(match[2]) for line in condition if (match := re.search(r"%(\S+) = .* constant\((\d+)\)", line))
    }
    compared = next(line for line in condition if "ROOT" in line)
    return next(
        number for constant, number in constants.items() if f"%{constant})" in compared or f"%{constant}," in compared
    )


def _module(op_name: str) -> str:
    """The innermost module path in an operation's name."""
    parts = [part for part in op_name.split("/") if re.match(r"(layers\.|lm_head|embed_tokens|norm$|rotary)", part)]
    return parts[-1] if parts else ""
