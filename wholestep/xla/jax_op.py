"""JAX functions as PyTorch operators.

    @jax_op("mylib::scaled_silu")
    def scaled_silu(x: jax.Array, scale: float = 1.0) -> jax.Array:
        return scale * x * jax.nn.sigmoid(x)

`scaled_silu(tensor)` then works on CPU tensors, under `torch.compile`, and in a captured step, where the function
itself becomes part of the one program. docs/custom-kernels.md walks through it.

An operator that is differentiated is three: `mylib::scaled_silu`; `mylib::scaled_silu_forward`, which also returns what
its gradient needs; `mylib::scaled_silu_backward`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, library
from torch.autograd import forward_ad
from torch.utils.flop_counter import flop_registry, register_flop_formula

from wholestep.errors import LoweringError
from wholestep.graph.intermediates import FREE
from wholestep.xla.dtypes import carried, to_program
from wholestep.xla.lowering.registry import lowers
from wholestep.xla.op_implementation import (
    Implementation,
    cached_by_text,
    carried_dtype,
    read_specs,
    structs,
    tensor_specs,
    write_specs,
)
from wholestep.xla.op_signature import Call, Signature

# By name, for pickles of modules that hold one.
_OPS: dict[str, JaxOp] = {}

# Donated arguments, by position, of the operators that have any; see `check_donations`.
DONATED: dict[Any, tuple[int, ...]] = {}

_TORCH_DTYPES = {
    np.dtype(carried(dtype)): dtype
    for dtype in (
        *(torch.float32, torch.bfloat16, torch.float16, torch.bool),
        *(torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint32),
    )
}


def jax_op(
    name: str,
    *,
    forward: Callable[..., tuple[Any, Any]] | None = None,
    backward: Callable[..., Sequence[Any]] | None = None,
    aliases: Mapping[str, int] | None = None,
    donate: Sequence[str] = (),
    flops: Callable[..., int] | None = None,
) -> Callable[[Callable[..., Any]], JaxOp]:
    """Make the decorated JAX function a PyTorch operator.

    Arguments annotated `jax.Array`, `jax.Array | None` or `Sequence[jax.Array]` are tensors. The others are static:
    `int`, `float`, `bool`, `str`, `tuple[int, ...]`, or one of these `| None`; the function is traced anew for each of
    their values. It returns a `jax.Array`, a tuple of them, or a `list[jax.Array]` whose length the arguments decide.
    `int64` tensors come as `int32`; `float64` is refused, since programs carry no such thing.

    A function with an argument `interpret` is given, instead of the caller, whether its Pallas kernels are interpreted:
    in programs for a TPU they are compiled, in all others interpreted.

    Args:
        name: `namespace::operator`.
        forward: what runs instead when a gradient will be needed: takes the same arguments, returns
            `(outputs, residuals)`, a tree of arrays. Comes with `backward`; without the two, `jax.vjp` differentiates.
        backward: `(residuals, gradients of the outputs, *, static arguments) -> gradients of the array arguments`, one
            for each in order, None where an argument has none.
        aliases: argument -> output that is written into it, as `torch.Tensor.add_` writes; the call returns the other
            outputs. A program does it without a copy.
        donate: arguments that the caller gives up, whose memory outputs may take over. A captured step that reads one
            afterwards is refused. There is no gradient then.
        flops: `(same arguments, arrays as specs) -> int`, the floating-point operations of the function, for cost
            models (`wholestep.graph.costs`); the gradient counts twice that, what it computes again not counted.

    Raises:
        TypeError: an annotation that is none of these, or a name that is no argument's.
        ValueError: a name without exactly one `::`, or with one of the two of `forward` and `backward`.
    """
    namespace, separator, operator = name.partition("::")
    if not (separator and namespace.isidentifier() and operator.isidentifier()):
        raise ValueError(f"jax_op: {name!r} is not namespace::operator")
    if (forward is None) != (backward is None):
        raise ValueError(f"jax_op {name}: forward and backward come together")

    def register(function: Callable[..., Any]) -> JaxOp:
        signature = Signature.of(function, name)
        for argument in (*(aliases or ()), *donate):
            if argument not in signature.arrays:
                raise TypeError(f"jax_op {name}: {argument!r} is no array argument; they are {signature.arrays}")
        for argument, index in (aliases or {}).items():
            if signature.types[argument] != "Tensor" or not 0 <= index < (signature.outputs or index + 1):
                raise TypeError(
                    f"jax_op {name}: there is no output {index} to write into {argument!r}, or it is not one array"
                )
        for argument in donate:
            if signature.types[argument] != "Tensor" or not signature.positions([argument]):
                raise TypeError(f"jax_op {name}: {argument!r} is donated; it must be one array, given by position")
        namespaced = getattr(torch.ops, namespace)
        if taken := [end for end in ("", "_forward", "_backward") if hasattr(namespaced, operator + end)]:
            raise ValueError(f"jax_op {name}: there is an operator {name}{taken[0]} already")
        implementation = Implementation(name, function, signature, forward, backward, donate)
        return JaxOp(implementation, dict(aliases or {}), flops)

    return register


class JaxOp:
    """A PyTorch operator that is a JAX function. Called with tensors; `function` is the function itself.

    Attributes:
        name: `namespace::operator`.
        function: as it was decorated.
        overload: the operator itself.
        forward_overload: the one that takes its place where gradients are asked for.
    """

    def __init__(
        self, implementation: Implementation, aliases: Mapping[str, int], flops: Callable[..., int] | None
    ) -> None:
        self.name, self.function = implementation.name, implementation.function
        self.__doc__, self.__name__ = self.function.__doc__, self.function.__name__
        self._signature = implementation.signature
        self._aliases = aliases
        _OPS[self.name] = self
        self.overload, self.forward_overload = _define(implementation)
        if flops is not None:
            _count_flops(implementation, flops)

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.name,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        results = self.overload(*args, **kwargs)
        if not self._aliases:
            return results
        arguments = self._signature.bind(args, kwargs)
        outputs = [results] if isinstance(results, Tensor) else list(results)
        for argument, index in self._aliases.items():
            given, new = arguments[argument], outputs[index]
            if (given.shape, given.dtype) != (new.shape, new.dtype):
                raise TypeError(
                    f"{self.name}: output {index} is {new.dtype}{list(new.shape)} and cannot be written into "
                    f"{argument!r}, which is {given.dtype}{list(given.shape)}"
                )
            given.copy_(new)
        rest = [output for index, output in enumerate(outputs) if index not in self._aliases.values()]
        return None if not rest else rest[0] if len(rest) == 1 else tuple(rest)


def _named(name: str) -> JaxOp:
    return _OPS[name]


def _define(implementation: Implementation) -> tuple[torch._ops.OpOverload, torch._ops.OpOverload]:
    """Register the three operators and their lowerings; returns the first two."""
    name, signature = implementation.name, implementation.signature
    library.define(name, signature.schema(), tags=torch.Tag.pt2_compliant_tag)
    arrays = "Tensor[] arrays"
    library.define(f"{name}_forward", f"({arrays}, str call, int[] wrt) -> Tensor[]")
    library.define(f"{name}_backward", f"({arrays}, Tensor[] grads, str call, str specs, int[] wrt) -> Tensor[]")
    namespace, _, operator = name.partition("::")
    ops = getattr(torch.ops, namespace)
    plain, forward, backward = (getattr(ops, operator + end).default for end in ("", "_forward", "_backward"))

    def run(*args: Any, **kwargs: Any) -> Any:
        flat, call = signature.flat(args, kwargs)
        return signature.nest_outputs(implementation.run(flat, call))

    def run_forward(arrays: Sequence[jax.Array], call: str, wrt: Sequence[int]) -> list[jax.Array]:
        return implementation.run_forward(list(arrays), Call.read(call), tuple(wrt))

    def run_backward(
        arrays: Sequence[jax.Array], grads: Sequence[jax.Array], call: str, specs: str, wrt: Sequence[int]
    ) -> list[jax.Array]:
        return implementation.run_backward(arrays, grads, Call.read(call), read_specs(specs), tuple(wrt))

    for overload, function in ((plain, run), (forward, run_forward), (backward, run_backward)):
        lowers(overload)(function)
        library.impl(overload.name(), "CPU")(_Eager(overload, function))
        library.register_fake(overload.name())(partial(_fake, function))
    library.impl(name, "Autograd")(partial(_differentiable, implementation, plain, forward, backward))
    if implementation.donate:
        DONATED[plain] = signature.positions(implementation.donate)
    return plain, forward


def _differentiable(
    implementation: Implementation,
    plain: torch._ops.OpOverload,
    forward: torch._ops.OpOverload,
    backward: torch._ops.OpOverload,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The operator where gradients may be asked for."""
    flat, call = implementation.signature.flat(args, kwargs)
    wanted = torch.is_grad_enabled() and any(x.requires_grad and x.is_floating_point() for x in flat)
    if forward_ad._current_level >= 0:
        wanted = wanted or any(forward_ad.unpack_dual(x).tangent is not None for x in flat)
    if not wanted:
        with torch._C._AutoDispatchBelowAutograd():
            return plain(*args, **kwargs)
    if implementation.donate:
        raise RuntimeError(
            f"{implementation.name} takes over the memory of {', '.join(implementation.donate)}, so it has no "
            "gradient: call it under torch.no_grad()"
        )
    results = _Function.apply(implementation, forward, backward, call, *flat)
    return implementation.signature.nest_outputs(results)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        implementation: Implementation,
        forward: torch._ops.OpOverload,
        backward: torch._ops.OpOverload,
        call: Call,
        *arrays: Tensor,
    ) -> tuple[Tensor, ...]:
        needed = ctx.needs_input_grad[4:]
        wrt = tuple(i for i, array in enumerate(arrays) if needed[i] and array.is_floating_point())
        specs = tensor_specs(arrays)
        plan = implementation.plan(call, specs, wrt)
        count = len(implementation.output_specs(call, specs))
        with torch._C._AutoDispatchBelowAutograd():
            results = forward(list(arrays), call.write(), list(wrt))
        outputs = tuple(results[:count])
        # The inputs too, if only for whoever differentiates the gradient to come upon `_Gradient`.
        ctx.save_for_backward(*plan.select(arrays, results, count), *(arrays[i] for i in wrt))
        ctx.mark_non_differentiable(*(output for output in outputs if not output.is_floating_point()))
        ctx.floating = [output.is_floating_point() for output in outputs]
        ctx.backward_operator, ctx.call, ctx.specs, ctx.wrt = backward, call, specs, wrt
        ctx.arrays = len(arrays)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        floating = [grad for grad, is_float in zip(grads, ctx.floating, strict=True) if is_float]
        saved, static = ctx.saved_tensors, (ctx.call.write(), write_specs(ctx.specs), list(ctx.wrt))
        kept = len(saved) - len(ctx.wrt)
        found = _Gradient.apply(ctx.backward_operator, static, kept, len(floating), *saved[:kept], *floating, *saved)
        by_place = dict(zip(ctx.wrt, found, strict=True))
        return None, None, None, None, *(by_place.get(i) for i in range(ctx.arrays))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError("a jax_op has no forward-mode derivative; use reverse mode (torch.autograd.grad)")


class _Gradient(torch.autograd.Function):
    """The gradient's operator. It has no gradient itself, and says so to whoever wants one."""

    @staticmethod
    def forward(
        ctx: Any, operator: torch._ops.OpOverload, static: tuple[Any, ...], kept: int, grads: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.name = operator.name()
        with torch._C._AutoDispatchBelowAutograd():
            return tuple(operator(list(tensors[:kept]), list(tensors[kept : kept + grads]), *static))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(f"{ctx.name} has no derivative: a jax_op can be differentiated once")


class _Eager:
    """An operator on CPU tensors: its JAX function, compiled for the CPU once for each shape and static value."""

    def __init__(self, overload: torch._ops.OpOverload, function: Callable[..., Any]) -> None:
        self._name = overload.name()
        self._compiled = cached_by_text(lambda tree, static: jax.jit(_of_arrays(function, tree, static)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tree, static, tensors = _apart(args, kwargs)
        results = self._compiled(tree, static)(*(_to_jax(tensor, self._name) for tensor in tensors))
        # Before anyone writes into the tensors that it reads.
        return jax.tree.map(torch.from_dlpack, jax.block_until_ready(results))


class _Array:
    def __repr__(self) -> str:
        return "array"


_ARRAY = _Array()


def _apart(args: Any, kwargs: Any) -> tuple[Any, tuple[Any, ...], list[Tensor]]:
    """A call's tree, its leaves with `_ARRAY` for tensors, and the tensors."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    static = tuple(_ARRAY if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return tree, static, [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _of_arrays(function: Callable[..., Any], tree: Any, static: tuple[Any, ...]) -> Callable[..., Any]:
    """The call as a function of its arrays alone."""

    def run(*arrays: jax.Array) -> Any:
        given = iter(arrays)
        args, kwargs = jax.tree.unflatten(tree, [next(given) if leaf is _ARRAY else leaf for leaf in static])
        return function(*args, **kwargs)

    return run


def _to_jax(tensor: Tensor, name: str) -> jax.Array:
    carried_dtype(tensor)
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.int64:
        return jnp.asarray(to_program(name, tensor.numpy(), torch.int64))
    return jax.dlpack.from_dlpack(tensor)


def _fake(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Tensors like the results, which hold nothing."""
    tree, static, tensors = _apart(args, kwargs)
    results = jax.eval_shape(_of_arrays(function, tree, static), *structs(tensor_specs(tensors)))
    return jax.tree.map(
        lambda result: tensors[0].new_empty(result.shape, dtype=_TORCH_DTYPES[np.dtype(result.dtype)]), results
    )


def check_donations(graph: torch.fx.Graph) -> None:
    """See that nothing reads an argument after the operator that it was donated to.

    Raises:
        LoweringError: something does.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        for position in DONATED.get(node.target, ()):
            later = [user for each in _views(node.args[position]) for user in each.users if order[user] > order[node]]
            if later:
                raise LoweringError(
                    f"{node.target} (in {node.meta.get('module') or 'the root module'}) takes over the memory of its "
                    f"argument {position}, which {later[0].target} reads afterwards: give it a copy"
                )


def _views(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What shows the same memory, as far as rearrangements go: the tensor, what it is a view of, all views of that."""
    while node.op == "call_function" and node.target in FREE and node.target is not operator.getitem:
        node = node.all_input_nodes[0]
    found = [node]
    for each in found:
        found += [user for user in each.users if user.target in FREE and user not in found]
    return found


def _count_flops(implementation: Implementation, flops: Callable[..., int]) -> None:
    signature = implementation.signature
    namespace, _, operator = implementation.name.partition("::")
    ops = getattr(torch.ops, namespace)

    def count(arrays: Sequence[Any], call: Call) -> int:
        return int(flops(**signature.arguments(call, arrays)))

    def of_plain(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        return count(*signature.flat(args, kwargs))

    def of_forward(arrays: Sequence[Any], call: str, wrt: Any, out_val: Any = None) -> int:
        return count(arrays, Call.read(call))

    def of_backward(arrays: Any, grads: Any, call: str, specs: str, wrt: Any, out_val: Any = None) -> int:
        return 2 * count(structs(read_specs(specs)), Call.read(call))

    for end, formula in (("", of_plain), ("_forward", of_forward), ("_backward", of_backward)):
        packet = getattr(ops, operator + end)
        assert packet not in flop_registry
        register_flop_formula(packet, get_raw=True)(formula)
