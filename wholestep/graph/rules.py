"""The policy that is given rules by operator and module: `mm@*.o_proj=save`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import fx

from wholestep.errors import ConfigError, nearest
from wholestep.graph.fates import Fate, Policy

_GRAMMAR = "a rule is OPERATOR@MODULE=FATE, such as 'mm@*.o_proj=save' or 'softmax@attention.inner=recompute'"


def by_rules(rules: Sequence[str], otherwise: Policy) -> Rules:
    """A policy in which the first rule that matches decides, and `otherwise` where none does.

    A rule is `OPERATOR@MODULE=FATE`; in both patterns `*` stands for anything, dots too (`?` and `[ab]` work as well).

    - OPERATOR: the operator's name, without namespace, overload and leading underscores: `mm`, `softmax`,
      `all_gather_into_tensor`. What enters a layer is `input`; it is always kept, so that `recompute` saves it.
    - MODULE: the module whose forward computed it: its path in the model (`layers.*.attention.inner`), or the end
      of it after any dot: so a path that starts in the layer (`attention.inner`) is enough. It stands for this
      module alone, not for those in it; those of `attention` are `attention.*`. Alike layers share one body, which
      has the paths of the first of them: write `layers.*`, not the number of another.
    - FATE: `save`, `offload` or `recompute`.

    Raises:
        ConfigError: something is not a rule.
    """
    return Rules(tuple(_parse(rule) for rule in rules), otherwise)


@dataclass(frozen=True)
class Rule:
    """One rule; `text` is as it was written."""

    text: str
    operator: str
    module: str
    fate: Fate

    def matches(self, name: str, path: str) -> bool:
        """Whether it is about values that this operator computes in this module."""
        parts = path.split(".")
        ends = (".".join(parts[i:]) for i in range(len(parts)))
        return fnmatchcase(name, self.operator) and any(fnmatchcase(end, self.module) for end in ends)


class Rules:
    """A policy that remembers which of its rules it has used."""

    def __init__(self, rules: tuple[Rule, ...], otherwise: Policy) -> None:
        self._rules = rules
        self._otherwise = otherwise
        self._used: set[Rule] = set()

    def __call__(self, node: fx.Node) -> Fate:
        name, path = _operator_name(node), node.meta.get("module", "")
        for rule in self._rules:
            if rule.matches(name, path):
                self._used.add(rule)
                kept_anyway = node.op == "placeholder" and rule.fate is Fate.RECOMPUTE
                return Fate.SAVE if kept_anyway else rule.fate
        return self._otherwise(node)

    def check_used(self) -> None:
        """See that every rule was of use; to be called when all layers have been captured.

        Raises:
            ConfigError: a rule decided nothing.
        """
        for rule in self._rules:
            if rule not in self._used:
                raise ConfigError(
                    f"the rule {rule.text!r} decides nothing: either no layer computes such a value, or the "
                    "backward pass does not need it, or an earlier rule decides on it"
                )


def _parse(text: str) -> Rule:
    pattern, _, fate = text.rpartition("=")
    name, _, module = pattern.partition("@")
    if not (name and module and fate):
        raise ConfigError(f"{text!r} is not a rule: {_GRAMMAR}")
    fates = [fate.value for fate in Fate]
    if fate not in fates:
        raise ConfigError(f"the rule {text!r} ends in none of {', '.join(fates)}{nearest(fate, fates)}; {_GRAMMAR}")
    return Rule(text, name, module, Fate(fate))


def _operator_name(node: fx.Node) -> str:
    if node.op == "placeholder":
        return "input"
    if node.target is operator.getitem:  # one result of an operator that has several
        node = node.all_input_nodes[0]
    target = getattr(node.target, "overloadpacket", node.target)
    return target.__name__.lstrip("_")
