"""What a field's annotation accepts, from Python values and from text."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from wholestep.config.node import Node
from wholestep.errors import ConfigError, nearest


def check(value: Any, annotation: Any, path: str, old: Any) -> Any:
    """`value` as the field at `path` stores it; ConfigError unless `annotation` accepts it.

    An int is accepted where a float is declared, a list where a tuple is; a bool is no int. A tuple of nodes accepts
    an int n, which keeps the first n elements of `old`.
    """
    try:
        return _check(value, annotation, path, old)
    except _MismatchError:
        raise ConfigError(f"{path}: expected {_expected(annotation)}, got {value!r}") from None


def parse(text: str, annotation: Any, path: str, old: Any) -> Any:
    """The value that `text` means to a field declared as `annotation`; ConfigError when it means none.

    `none` is None, `true` and `false` are bools, tuples are separated by commas. A node is written by its name, where
    it has one (`Node.choices`); it takes over from the old one what the declared type has fields for.
    """
    try:
        return _parse(text, annotation, path, old)
    except _MismatchError:
        if isinstance(old, Node):
            keys = ", ".join(f"{path}.{field.name}" for field in fields(old))
            advice = f"set its keys instead: {keys}" if keys else "it has no keys to set"
            if choices := _choices(annotation):
                meant = nearest(text, choices)
                advice = f"put another in its place by name ({', '.join(choices)}){meant}, or {advice}"
            raise ConfigError(f"{path} is a group ({type(old).__qualname__}), not a value: {advice}") from None
        advice = "; a group cannot be written as text" if _names_node(annotation) else ""
        raise ConfigError(f"{path}: expected {_expected(annotation)}, got {text!r}{advice}") from None


class _MismatchError(Exception):
    """The annotation at hand does not accept the value at hand; another member of a union may."""


def _check(value: Any, annotation: Any, path: str, old: Any) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return value
    if len(members := _members(annotation)) > 1:
        exact = [member for member in members if member is type(value)]
        return _first(exact or members, lambda member: _check(value, member, path, old))
    if origin is Literal:
        accepted = any(value == choice and type(value) is type(choice) for choice in arguments)
    elif origin is tuple:
        if _holds_nodes(annotation) and type(value) is int:
            return _keep(old, value, path)
        if not isinstance(value, tuple | list):
            raise _MismatchError
        elements = _element_annotations(annotation, len(value))
        return tuple(_check(item, element, path, None) for item, element in zip(value, elements, strict=True))
    elif annotation is float and type(value) is int:
        return float(value)
    else:
        kind = origin or annotation
        accepted = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    if not accepted:
        raise _MismatchError
    return value


def _parse(text: str, annotation: Any, path: str, old: Any) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if len(members := _members(annotation)) > 1:
        # Any text is a str, so that comes last.
        by_caution = sorted(members, key=lambda member: (member is not types.NoneType, member is str))
        return _first(by_caution, lambda member: _parse(text, member, path, old))
    if annotation is types.NoneType:
        return _choose({"none": None}, text.lower())
    if annotation is bool:
        return _choose({"true": True, "false": False}, text.lower())
    if origin is Literal:
        return _choose({str(choice): choice for choice in arguments}, text)
    if origin is tuple:
        if _holds_nodes(annotation):
            return _keep(old, _parse(text, int, path, None), path)
        parts = [part.strip() for part in text.split(",")] if text.strip() else []
        elements = _element_annotations(annotation, len(parts))
        return tuple(_parse(part, element, path, None) for part, element in zip(parts, elements, strict=True))
    if annotation in (int, float, Path):
        try:
            return annotation(text)
        except ValueError:
            raise _MismatchError from None
    if annotation in (str, Any):
        return text
    if isinstance(annotation, type) and issubclass(annotation, Node) and annotation is not Node:
        chosen = _choose(annotation.choices(), text)
        kept = fields(annotation) if isinstance(old, annotation) else ()
        return chosen(**{field.name: getattr(old, field.name) for field in kept})
    raise _MismatchError


def _first(members: Any, attempt: Callable[[Any], Any]) -> Any:
    for member in members:
        try:
            return attempt(member)
        except _MismatchError:
            continue
    raise _MismatchError


def _choose(choices: Mapping[str, Any], text: str) -> Any:
    if text not in choices:
        raise _MismatchError
    return choices[text]


def _keep(old: tuple, count: int, path: str) -> tuple:
    if not 1 <= count <= len(old):
        raise ConfigError(f"{path}: expected how many of its {len(old)} elements to keep, at least 1, got {count}")
    return old[:count]


def _element_annotations(annotation: Any, length: int) -> tuple[Any, ...]:
    arguments = get_args(annotation)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return (arguments[0],) * length
    if len(arguments) != length:
        raise _MismatchError
    return arguments


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _choices(annotation: Any) -> list[str]:
    members = [member for member in _members(annotation) if member is not Node]
    return [name for node in members if _names_node(node) for name in node.choices()]


def _names_node(annotation: Any) -> bool:
    return any(isinstance(member, type) and issubclass(member, Node) for member in _members(annotation))


def _holds_nodes(annotation: Any) -> bool:
    return _names_node(get_args(annotation)[0])


def element_annotation(annotation: Any, index: int) -> Any:
    """What a tuple declared as `annotation` declares its element `index` to be."""
    for member in _members(annotation):
        if get_origin(member) is tuple:
            arguments = get_args(member)
            return arguments[0] if arguments[-1] is Ellipsis else arguments[index]
    return Any


def _expected(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if len(members := _members(annotation)) > 1:
        return " or ".join(_expected(member) for member in members)
    if origin is Literal:
        return f"one of {', '.join(repr(choice) for choice in arguments)}"
    if origin is tuple:
        if _holds_nodes(annotation):
            return f"a tuple of {_expected(arguments[0])}, or how many elements to keep"
        if arguments[-1] is Ellipsis:
            return f"a tuple of {_expected(arguments[0])}"
        return f"a tuple ({', '.join(_expected(element) for element in arguments)})"
    if annotation is types.NoneType:
        return "None"
    if names := _choices(annotation):
        return f"one of {', '.join(map(repr, names))}"
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
