"""How often the loops of a compiled module run. The TPU compiler does not say: their counters are run here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from wholestep.plan.hlo import Computation, Instruction, Module

_LIMIT = 100_000
_COMPARE = {name: getattr(operator, name.lower()) for name in ("LT", "LE", "GT", "GE", "EQ", "NE")}
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "minimum": min,
    "maximum": max,
}
_SAME = ("copy", "bitcast", "convert", "reshape", "broadcast", "copy-done", "opt-barrier")

Value = int | None | list["Value"]
"""Of a scalar, or of a tuple; None for what is no known integer."""


def trips(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """How often the body of a `while` of this computation runs; None where that depends on data."""
    condition, body = module.condition_and_body(loop)
    carried = _Evaluation(module, computation, [None] * len(computation.parameters)).value(loop.operands[0])
    if not isinstance(carried, list):
        return None
    for count in range(_LIMIT):
        goes_on = _Evaluation(module, condition, [carried]).value(condition.root.name)
        if goes_on is None or isinstance(goes_on, list):
            return None
        if not goes_on:
            return count
        after = _Evaluation(module, body, [carried]).value(body.root.name)
        if not isinstance(after, list):
            return None
        carried = after
    return None


class _Evaluation:
    """What is known of a computation's scalars, given what is known of its arguments."""

    def __init__(self, module: Module, computation: Computation, arguments: Sequence[Value]) -> None:
        self.module = module
        self.computation = computation
        self.known: dict[str, Value] = {}
        for parameter, argument in zip(computation.parameters, arguments, strict=True):
            self.known[parameter.name] = argument

    def value(self, name: str) -> Value:
        if name not in self.known:
            self.known[name] = self._evaluate(self.computation.by_name[name])
        return self.known[name]

    def _evaluate(self, instruction: Instruction) -> Value:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "tuple":
            return [self.value(name) for name in operands]
        if opcode == "get-tuple-element":
            whole = self.value(operands[0])
            return whole[int(instruction.attribute("index") or 0)] if isinstance(whole, list) else None
        if opcode == "while" or any(array.elements > 1 for array in instruction.arrays):
            return None
        if opcode == "constant":
            text = instruction.arguments
            return {"true": 1, "false": 0}.get(text, int(text) if text.lstrip("-").isdecimal() else None)
        if opcode in _SAME:
            return self.value(operands[0])
        if opcode in ("fusion", "call"):
            (inside,) = self.module.called(instruction)
            return _Evaluation(self.module, inside, [self.value(name) for name in operands]).value(inside.root.name)
        scalars = [scalar for name in operands if isinstance(scalar := self.value(name), int)]
        if not scalars or len(scalars) < len(operands):
            return None
        if opcode == "compare":
            return int(_COMPARE[instruction.attribute("direction") or ""](*scalars))
        if opcode == "select":
            return scalars[1] if scalars[0] else scalars[2]
        return _ARITHMETIC[opcode](*scalars) if opcode in _ARITHMETIC else None
