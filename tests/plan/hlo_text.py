"""HLO modules written by hand, a few lines each, as the TPU compiler prints them."""

from __future__ import annotations

from wholestep.plan.hlo import Computation, Instruction, Module, parse


def module(entry: str, *others: str) -> Module:
    """A module of an entry computation with these lines, and of other computations: `name` and lines each."""
    texts = [computation(*other.strip().split("\n", 1)) for other in others]
    return parse("\n\n".join(["HloModule jit_run, is_scheduled=true", *texts, "ENTRY " + computation("main", entry)]))


def computation(name: str, lines: str, end: str = "}") -> str:
    body = "\n".join("  " + line.strip() for line in lines.strip().split("\n"))
    return f"%{name.strip()} (p: f32[]) -> f32[] {{\n{body}\n{end}"


def find(program: Module, name: str) -> tuple[Computation, Instruction]:
    """An instruction by its name, and the computation that it is in."""
    for each in program.computations.values():
        if name in each.by_name:
            return each, each.by_name[name]
    raise AssertionError(f"no instruction {name}")
