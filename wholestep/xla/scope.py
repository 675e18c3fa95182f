"""Where an operation of a program came from, carried in its name: the module, the line of PyTorch, the operator.

An operation of a program is called after the JAX scopes that made it, and keeps that name through the compiler. A
step's nodes open one scope each, `layers.0.attention.q_proj[attention.py,171,aten.mm]`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import fx

_SCOPE = re.compile(r"(?P<module>[^/\[\]()]*)\[(?P<file>[^,\[\]]*),(?P<line>\d*),(?P<operator>[^\[\]]*)\]")


@dataclass(frozen=True)
class Origin:
    """Attributes:
    module: path of the module; empty for what belongs to none.
    line: `attention.py:171`; empty if unknown.
    operator: `aten.mm`; empty if unknown.
    shared: whether this is in a body that modules which are alike share, and the path is that of the first of them.
    """

    module: str = ""
    line: str = ""
    operator: str = ""
    shared: bool = False


def scope(node: fx.Node) -> str:
    """The name of a node's scope."""
    file, _, number = node.meta.get("line", "").partition(":")
    packet = getattr(node.target, "overloadpacket", None)
    operator = str(packet) if packet is not None else getattr(node.target, "__name__", str(node.target))
    return f"{node.meta.get('module', '')}[{file},{number},{operator}]"


def origin(op_name: str) -> Origin:
    """Of an operation with this name: what its innermost scope says."""
    found = _SCOPE.findall(op_name)
    if not found:
        return Origin()
    module, file, number, operator = found[-1]
    shared = any(outer[3] == "call" for outer in found[:-1])
    return Origin(module, f"{file}:{number}" if file else "", operator, shared)
