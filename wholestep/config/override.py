"""Rewriting a config tree by dotted paths, and reading it back.

A path names fields (`model.dim`), elements of tuples by number or by range (`model.layers.3.attention`,
`model.layers.0-3`), and with `*` every field or element (`model.layers.*.attention.inner`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, TypeVar, get_type_hints

from wholestep.config.node import Node
from wholestep.config.values import check, element_annotation, parse
from wholestep.errors import ConfigError, nearest

T = TypeVar("T", bound=Node)

_NUMBERS = re.compile(r"(\d+)(?:-(\d+))?")


def replace(tree: T, path: str, value: Any) -> T:
    """The tree with `value` at every place that `path` matches.

    Parts that `*` or a range reaches and that lack the rest of the path are left as they are. An int for a tuple of
    nodes keeps that many of its first elements (`model.layers` to 2). Raises ConfigError when nothing matches, naming
    the nearest paths, and when a field is not declared to hold such a value.
    """
    return _rewrite(tree, path, partial(check, value))


def apply(tree: T, assignments: Sequence[str]) -> T:
    """The tree with each `path=value` applied in order, the text read by the type that the field declares."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"{assignment!r} is not an assignment: write path=value")
        tree = _rewrite(tree, path, partial(parse, text))
    return tree


def values_at(tree: Node, path: str) -> list[Any]:
    """What `path` leads to, nodes and values; nothing where it matches nothing."""
    reached: list[Any] = [tree]
    for segment in path.split("."):
        reached = [child for value in reached for _, child, _ in _select(value, Any, segment)]
    return reached


def flatten(tree: Node) -> dict[str, Any]:
    """Every value of the tree by its path. A tuple of plain values is one value."""
    return dict(_leaves(tree, ""))


def to_dict(tree: Node) -> dict[str, Any]:
    """The tree as JSON can hold it; each node says its class under `node`."""
    return _to_json(tree)


def describe(tree: Node) -> str:
    """The tree for people to read, a run of equal elements shown once (`layers.0-31:`)."""
    return "\n".join([type(tree).__qualname__, *_lines(tree, "  ")])


def _rewrite(tree: T, path: str, convert: Callable[[Any, str, Any], Any]) -> T:
    segments = path.split(".")
    rewritten, matched = _walk(tree, type(tree), segments, "", convert)
    if not matched:
        raise ConfigError(_explain(tree, segments))
    return rewritten


def _walk(
    value: Any, annotation: Any, segments: list[str], at: str, convert: Callable[[Any, str, Any], Any]
) -> tuple[Any, bool]:
    if not segments:
        return convert(annotation, at, value), True
    changes = {}
    for key, child, child_annotation in _select(value, annotation, segments[0]):
        rewritten, matched = _walk(child, child_annotation, segments[1:], _join(at, key), convert)
        if matched:
            changes[key] = rewritten
    if not changes:
        return value, False
    if isinstance(value, Node):
        return dataclasses.replace(value, **changes), True
    return tuple(changes.get(str(index), element) for index, element in enumerate(value)), True


def _select(value: Any, annotation: Any, segment: str) -> list[tuple[str, Any, Any]]:
    """The (key, child, annotation of the child) that `segment` matches in `value`."""
    if isinstance(value, Node):
        fields = _annotations(value).items()
        return [(name, getattr(value, name), declared) for name, declared in fields if segment in ("*", name)]
    if not isinstance(value, tuple):
        return []
    indices = range(len(value)) if segment == "*" else _indices(segment)
    if not indices or indices[-1] >= len(value):
        return []
    return [(str(index), value[index], element_annotation(annotation, index)) for index in indices]


def _indices(segment: str) -> range:
    match = _NUMBERS.fullmatch(segment)
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)


def _annotations(node: Node) -> dict[str, Any]:
    """The declared type of each field."""
    kind: Any = type(node)
    return _annotations_of(kind)


@cache
def _annotations_of(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _explain(tree: Node, segments: list[str]) -> str:
    """Where on the path nothing matched any more, and which paths are like it."""
    reached: list[Any] = [tree]
    depth = 0
    while following := [child for value in reached for _, child, _ in _select(value, Any, segments[depth])]:
        reached, depth = following, depth + 1
    prefix, segment = ".".join(segments[:depth]) or type(tree).__qualname__, segments[depth]
    if any(isinstance(value, Node) for value in reached):
        fault = f"{prefix} has no field {segment!r}"
    elif isinstance(reached[0], tuple):
        fault = f"{prefix} has {len(reached[0])} elements, counted from 0, and no {segment!r}"
    else:
        fault = f"{prefix} is a value, nothing is inside it"
    wanted = ".".join("*" if _NUMBERS.fullmatch(part) else part for part in segments)
    known = sorted(set(_paths(tree, "")))
    likely = "" if wanted in known else nearest(wanted, known)
    return f"{'.'.join(segments)!r} matches nothing: {fault}{likely}"


def _paths(value: Any, at: str) -> Iterator[str]:
    """Every path of the tree, with `*` for the elements of tuples of nodes."""
    if at:
        yield at
    if isinstance(value, Node):
        for name in _annotations(value):
            yield from _paths(getattr(value, name), _join(at, name))
    elif _holds_nodes(value):
        for element in value:
            yield from _paths(element, _join(at, "*"))


def _leaves(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Node):
        for name in _annotations(value):
            yield from _leaves(getattr(value, name), _join(at, name))
    elif _holds_nodes(value):
        for index, element in enumerate(value):
            yield from _leaves(element, _join(at, str(index)))
    else:
        yield at, value


def _to_json(value: Any) -> Any:
    if isinstance(value, Node):
        fields = {name: _to_json(getattr(value, name)) for name in _annotations(value)}
        return {"node": type(value).__qualname__, **fields}
    if isinstance(value, tuple):
        return [_to_json(element) for element in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _lines(node: Node, indent: str) -> Iterator[str]:
    for name in _annotations(node):
        value = getattr(node, name)
        if isinstance(value, Node):
            parts = [(name, value)]
        elif _holds_nodes(value):
            parts = [(f"{name}.{run}", element) for run, element in _runs(value)]
        else:
            yield f"{indent}{name}: {value}"
            continue
        for label, part in parts:
            yield f"{indent}{label}: {type(part).__qualname__}"
            yield from _lines(part, indent + "  ")


def _runs(elements: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    start = 0
    for end in range(1, len(elements) + 1):
        if end == len(elements) or elements[end] != elements[start]:
            yield (str(start) if end == start + 1 else f"{start}-{end - 1}"), elements[start]
            start = end


def _holds_nodes(value: Any) -> bool:
    return isinstance(value, tuple) and any(isinstance(element, Node) for element in value)


def _join(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key
