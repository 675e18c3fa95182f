"""How a JAX function's annotations read as the signature of a PyTorch operator, and its arguments as a flat list."""

from __future__ import annotations

import inspect
import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import jax

# The schema types of static arguments; a tuple of integers is `int[]`.
_STATIC = {int: "int", float: "float", bool: "bool", str: "str", tuple[int, ...]: "int[]"}


@dataclass(frozen=True)
class Call:
    """What of a call is no array.

    Attributes:
        arrays: for each array argument the number of arrays: None for None, -1 for one that is alone.
        static: the static arguments, by name.
    """

    arrays: tuple[int | None, ...]
    static: tuple[tuple[str, Any], ...]

    def write(self) -> str:
        """As text, which operators can be given."""
        return json.dumps([self.arrays, self.static])

    @staticmethod
    @cache
    def read(text: str) -> Call:
        """The inverse of `write`."""
        arrays, static = json.loads(text)
        return Call(tuple(arrays), tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in static))


@dataclass(frozen=True)
class Signature:
    """The signature of an operator.

    Attributes:
        name: of the operator, for errors.
        parameters: of the function; all but `interpret`.
        types: their types in the schema.
        returns: the type of the result in the schema.
        takes_interpret: whether the function has an argument `interpret`.
    """

    name: str
    parameters: tuple[inspect.Parameter, ...]
    types: Mapping[str, str]
    returns: str
    takes_interpret: bool

    @staticmethod
    def of(function: Callable[..., Any], name: str) -> Signature:
        """Read a function's annotations.

        Raises:
            TypeError: one is missing, or means neither an array nor a static value.
        """
        parameters = dict(inspect.signature(function).parameters)
        hints = get_type_hints(function)
        takes_interpret = parameters.pop("interpret", None) is not None
        types = {}
        for argument, parameter in parameters.items():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(f"jax_op {name}: *args and **kwargs have no place in an operator's signature")
            types[argument] = _schema_type(hints.get(argument), f"jax_op {name}: argument {argument!r}")
        if not any(kind.startswith("Tensor") for kind in types.values()):
            raise TypeError(f"jax_op {name}: none of its arguments is an array")
        return Signature(name, tuple(parameters.values()), types, _return_type(hints, name), takes_interpret)

    @property
    def outputs(self) -> int | None:
        """How many there are; None where the arguments decide."""
        if self.returns == "Tensor[]":
            return None
        return 1 if self.returns == "Tensor" else self.returns.count("Tensor")

    def flat_outputs(self, results: Any) -> list[Any]:
        """What the function returned as a list.

        Raises:
            TypeError: it is not as declared.
        """
        several = isinstance(results, tuple | list)
        flat = list(results) if several else [results]
        if several == (self.returns == "Tensor") or self.outputs not in (None, len(flat)):
            declared = "one array" if self.returns == "Tensor" else f"{self.outputs or 'a list of'} arrays"
            got = f"{len(flat)} in a {type(results).__name__}" if several else "one array"
            raise TypeError(f"{self.name}: the function is declared to return {declared} and returned {got}")
        return flat

    @property
    def arrays(self) -> list[str]:
        """Names of the array arguments."""
        return [name for name, kind in self.types.items() if kind.startswith("Tensor")]

    def schema(self) -> str:
        """In the language of PyTorch's operator schemas."""
        parts, keywords = [], False
        for parameter in self.parameters:
            if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
                parts.append("*")
                keywords = True
            default = "" if parameter.default is parameter.empty else f"={_literal(parameter.default)}"
            parts.append(f"{self.types[parameter.name]} {parameter.name}{default}")
        return f"({', '.join(parts)}) -> {self.returns}"

    def positions(self, names: Sequence[str]) -> tuple[int, ...]:
        """Where these arguments are among the positional ones."""
        by_position = (parameter.kind is not parameter.KEYWORD_ONLY for parameter in self.parameters)
        places = zip(self.parameters, by_position, strict=True)
        return tuple(i for i, (parameter, holds) in enumerate(places) if holds and parameter.name in names)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument by name, defaults too."""
        given = dict(zip((parameter.name for parameter in self.parameters), args, strict=False)) | dict(kwargs)
        return {p.name: given.get(p.name, p.default) for p in self.parameters}

    def flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], Call]:
        """The arrays in order, and the rest of the call."""
        arguments = self.bind(args, kwargs)
        flat: list[Any] = []
        counts: list[int | None] = []
        static = []
        for name, value in arguments.items():
            if not self.types[name].startswith("Tensor"):
                static.append((name, tuple(value) if isinstance(value, list) else value))
            elif self.types[name] == "Tensor[]":
                flat += value
                counts.append(len(value))
            else:
                flat += [] if value is None else [value]
                counts.append(None if value is None else -1)
        return flat, Call(tuple(counts), tuple(static))

    def arguments(self, call: Call, arrays: Sequence[Any]) -> dict[str, Any]:
        """The inverse of `flat`: every argument by name."""
        given = iter(arrays)
        values = dict(call.static)
        for name, count in zip(self.arrays, call.arrays, strict=True):
            if count is None:
                values[name] = None
            else:
                values[name] = next(given) if count == -1 else tuple(next(given) for _ in range(count))
        return values

    def flatten(self, call: Call, values: Sequence[Any]) -> list[Any]:
        """One value for each array argument (a sequence for one that is many, None for none) as a flat list."""
        flat: list[Any] = []
        if len(values) != len(call.arrays):
            raise TypeError(
                f"{self.name}: backward gives {len(values)} gradients for {len(call.arrays)} array arguments"
            )
        for count, value in zip(call.arrays, values, strict=True):
            if count == -1:
                flat.append(value)
            elif count is not None:
                flat += [None] * count if value is None else value
        return flat

    def nest_outputs(self, outputs: Sequence[Any]) -> Any:
        """The flat outputs as the operator returns them."""
        if self.returns == "Tensor":
            return outputs[0]
        return list(outputs) if self.returns == "Tensor[]" else tuple(outputs)


def _schema_type(annotation: Any, where: str) -> str:
    optional = ""
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    if types.NoneType in members and len(members) == 2:
        (annotation,) = (member for member in members if member is not types.NoneType)
        optional = "?"
    if annotation is jax.Array:
        return f"Tensor{optional}"
    if get_origin(annotation) is Sequence and get_args(annotation) == (jax.Array,) and not optional:
        return "Tensor[]"
    if annotation in _STATIC:
        return f"{_STATIC[annotation]}{optional}"
    raise TypeError(
        f"{where} is annotated {annotation!r}; an array is jax.Array, jax.Array | None or Sequence[jax.Array], a "
        "static value int, float, bool, str or tuple[int, ...], or one of these | None"
    )


def _return_type(hints: Mapping[str, Any], name: str) -> str:
    annotation = hints.get("return")
    if annotation is jax.Array:
        return "Tensor"
    if annotation == list[jax.Array]:
        return "Tensor[]"
    members = get_args(annotation)
    if get_origin(annotation) is tuple and members and set(members) == {jax.Array}:
        return f"({', '.join(['Tensor'] * len(members))})"
    raise TypeError(
        f"jax_op {name}: the result is annotated {annotation!r}; it is jax.Array, tuple[jax.Array, jax.Array] and so "
        "on, or list[jax.Array]"
    )


def _literal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"jax_op: {value} cannot be the default of an argument; take None for it")
    if isinstance(value, str):
        return json.dumps(value)
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
