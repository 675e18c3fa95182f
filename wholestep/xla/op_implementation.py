"""The three JAX functions of an operator (`wholestep.xla.jax_op`), and what its gradient needs of a call.

Which arrays those are is found by tracing once, for each shape and static value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import Tensor

from wholestep.xla.dtypes import carried
from wholestep.xla.op_signature import Call, Signature

Spec = tuple[tuple[int, ...], str]
"""Shape and dtype of an array."""


class Implementation:
    """The three JAX functions of an operator, each of a flat list of arrays."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        signature: Signature,
        forward: Callable[..., tuple[Any, Any]] | None,
        backward: Callable[..., Sequence[Any]] | None,
        donate: Sequence[str],
    ) -> None:
        self.name, self.function, self.signature = name, function, signature
        self._forward, self._backward = forward, backward
        self.donate = tuple(donate)
        self.plan = cached_by_text(self._plan)
        self.output_specs = cached_by_text(self._output_specs)

    def run(self, arrays: Sequence[jax.Array], call: Call) -> list[jax.Array]:
        """The outputs."""

        def plain(*arrays: jax.Array, **interpret: bool) -> list[jax.Array]:
            return self.signature.flat_outputs(self.function(**self.signature.arguments(call, arrays), **interpret))

        return self._on_platform(plain, arrays)

    def run_forward(self, arrays: Sequence[jax.Array], call: Call, wrt: tuple[int, ...]) -> list[jax.Array]:
        """The outputs, and those residuals that are neither inputs nor outputs nor constants."""
        plan = self.plan(call, specs_of(arrays), wrt)

        def keeping(*arrays: jax.Array, **interpret: bool) -> list[jax.Array]:
            outputs, leaves, _ = self._with_residuals(arrays, call, wrt, interpret)
            return [*outputs, *(leaf for leaf, source in zip(leaves, plan.sources, strict=True) if source is NEW)]

        return self._on_platform(keeping, arrays)

    def run_backward(
        self,
        kept: Sequence[jax.Array],
        grads: Sequence[jax.Array],
        call: Call,
        specs: tuple[Spec, ...],
        wrt: tuple[int, ...],
    ) -> list[jax.Array]:
        """The gradients of the arrays at `wrt`, from what `Plan.kept` names and the gradients of float outputs."""
        plan = self.plan(call, specs, wrt)

        def differentiate(*arrays: jax.Array, **interpret: bool) -> list[jax.Array]:
            kept, grads = iter(arrays[: len(plan.kept)]), iter(arrays[len(plan.kept) :])
            leaves = [next(kept) if constant is None else constant for constant in plan.constants]
            cotangents = [
                next(grads) if jnp.issubdtype(dtype, jnp.inexact) else np.zeros(shape, jax.dtypes.float0)
                for shape, dtype in self.output_specs(call, specs)
            ]
            residuals = jax.tree.unflatten(plan.tree, leaves)
            if self._backward is None:
                return list(residuals(cotangents))
            nested = self.signature.nest_outputs(cotangents)
            found = self._backward(residuals, nested, **dict(call.static), **interpret)
            return self._checked(self.signature.flatten(call, found), specs, wrt)

        return self._on_platform(differentiate, [*kept, *grads])

    def _with_residuals(
        self, arrays: Sequence[jax.Array], call: Call, wrt: tuple[int, ...], interpret: Mapping[str, bool]
    ) -> tuple[list[jax.Array], list[Any], Any]:
        """Outputs; residuals as leaves and tree."""
        if self._forward is not None:
            results, residuals = self._forward(**self.signature.arguments(call, arrays), **interpret)
            return self.signature.flat_outputs(results), *jax.tree.flatten(residuals)

        def of_differentiated(*some: jax.Array) -> list[jax.Array]:
            merged = list(arrays)
            for index, array in zip(wrt, some, strict=True):
                merged[index] = array
            return self.signature.flat_outputs(self.function(**self.signature.arguments(call, merged), **interpret))

        results, pullback = jax.vjp(of_differentiated, *(arrays[i] for i in wrt))
        return results, *jax.tree.flatten(pullback)

    def _plan(self, call: Call, specs: tuple[Spec, ...], wrt: tuple[int, ...]) -> Plan:
        found: list[Plan] = []

        def trace(*arrays: jax.Array) -> list[jax.Array]:
            outputs, leaves, tree = self._with_residuals(arrays, call, wrt, self._interpreted())
            places = {id(array): Source("input", i) for i, array in enumerate(arrays)}
            places |= {id(array): Source("output", i) for i, array in enumerate(outputs)}
            sources: list[Any] = []
            for leaf in leaves:
                constant = not isinstance(leaf, jax.core.Tracer)
                sources.append(leaf if constant else places.get(id(leaf), NEW))
            found.append(Plan(tree, tuple(sources)))
            return outputs

        jax.eval_shape(trace, *structs(specs))
        return found[0]

    def _output_specs(self, call: Call, specs: tuple[Spec, ...]) -> tuple[Spec, ...]:
        return specs_of(jax.eval_shape(lambda *arrays: self.run(arrays, call), *structs(specs)))

    def _on_platform(self, function: Callable[..., list[jax.Array]], arrays: Sequence[jax.Array]) -> list[jax.Array]:
        if not self.signature.takes_interpret:
            return function(*arrays)
        compiled, interpreted = partial(function, interpret=False), partial(function, interpret=True)
        return lax.platform_dependent(*arrays, tpu=compiled, default=interpreted)

    def _interpreted(self) -> dict[str, bool]:
        return {"interpret": True} if self.signature.takes_interpret else {}

    def _checked(self, grads: Sequence[Any], specs: tuple[Spec, ...], wrt: tuple[int, ...]) -> list[jax.Array]:
        for i in wrt:
            got = None if grads[i] is None else (tuple(grads[i].shape), str(grads[i].dtype))
            if got != specs[i]:
                raise TypeError(f"{self.name}: backward gives {got} for array argument {i}, which is {specs[i]}")
        return [grads[i] for i in wrt]


@dataclass(frozen=True)
class Source:
    """Where the gradient finds a residual: among inputs, outputs, or what the forward operator returns besides."""

    kind: Literal["input", "output", "new"]
    index: int = 0


NEW = Source("new")


class Plan:
    """What the gradient of one call finds kept.

    Attributes:
        tree: of the residuals.
        sources: for each of their leaves a `Source`, or the constant that it is.
        kept: those that are no constants.
        constants: for each leaf the constant, or None.
    """

    def __init__(self, tree: Any, sources: tuple[Any, ...]) -> None:
        self.tree, self.sources = tree, sources
        self.kept = [source for source in sources if isinstance(source, Source)]
        self.constants = [None if isinstance(source, Source) else source for source in sources]

    def select(self, inputs: Sequence[Tensor], results: Sequence[Tensor], outputs: int) -> list[Tensor]:
        """The tensors of `kept`: from the inputs and from what the forward operator returned."""
        new = iter(results[outputs:])
        return [
            next(new) if source is NEW else (inputs if source.kind == "input" else results)[source.index]
            for source in self.kept
        ]


def cached_by_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """Once for each text of the arguments: by equality 0.0 would be -0.0, and NaN nothing."""
    known: dict[str, Any] = {}

    def cached(*args: Any) -> Any:
        key = repr(args)
        if key not in known:
            known[key] = function(*args)
        return known[key]

    return cached


def specs_of(arrays: Sequence[Any]) -> tuple[Spec, ...]:
    """Of anything with a shape and a dtype of NumPy's."""
    return tuple((tuple(array.shape), str(array.dtype)) for array in arrays)


def tensor_specs(tensors: Sequence[Tensor]) -> tuple[Spec, ...]:
    """Of the arrays that tensors become."""
    return tuple((tuple(int(n) for n in tensor.shape), str(carried_dtype(tensor))) for tensor in tensors)


def carried_dtype(tensor: Tensor) -> np.dtype:
    """The dtype of the array that a tensor becomes.

    Raises:
        TypeError: float64.
    """
    if tensor.dtype == torch.float64:
        raise TypeError("a jax_op was given a float64 tensor; programs carry float32 at most: cast it first")
    return carried(tensor.dtype)


def structs(specs: Sequence[Spec]) -> list[jax.ShapeDtypeStruct]:
    """As JAX traces with them."""
    return [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in specs]


def write_specs(specs: Sequence[Spec]) -> str:
    """As text, which operators can be given."""
    return ";".join(f"{dtype}:{','.join(map(str, shape))}" for shape, dtype in specs)


def read_specs(text: str) -> tuple[Spec, ...]:
    """The inverse of `write_specs`."""
    parts = (part.split(":") for part in text.split(";"))
    return tuple((tuple(int(n) for n in shape.split(",") if n), dtype) for dtype, shape in parts)
