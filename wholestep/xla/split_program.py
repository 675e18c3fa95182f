"""A step as several executables, run one after the other: `wholestep.graph.split` on a mesh of devices."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from torch import Tensor, fx

from wholestep.graph.split import Cut, Piece, Plan, Repeat, split
from wholestep.graph.step import StepGraph, Value
from wholestep.xla.draws import Draws
from wholestep.xla.dtypes import carried
from wholestep.xla.flags import compile_with
from wholestep.xla.interpret import Interpreter
from wholestep.xla.program import Program, State, sharding, step_key

# How many pieces may wait to run. Buffers are allocated when a piece is handed to the device, so the host must not be
# far ahead; a few are enough to hide its work, and for what comes back from host memory to arrive before it is used.
_AHEAD = 4


@dataclass(frozen=True)
class _Place:
    """Where a value lives between pieces.

    Values of the step's signature live as it says. Any other is one array for each device, side by side along the first
    dimension, whether they are equal or not.

    Attributes:
        shape: of the global array.
        dtype: as carried.
        spec: over the mesh.
        on_host: whether in host memory.
        boxed: whether a scalar is held as a vector of one element a device.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    spec: PartitionSpec
    on_host: bool = False
    boxed: bool = False

    def unbox(self, x: jax.Array) -> jax.Array:
        return x[0] if self.boxed else x

    def box(self, x: jax.Array) -> jax.Array:
        return x[None] if self.boxed else x


@dataclass(frozen=True)
class _Draw:
    """Where one run of the pieces draws random numbers from: the step's key, and which of how many parts of each
    device's rows it works on."""

    seed: int
    step: int
    part: int = 0
    parts: int = 1

    def of_part(self, index: int, parts: int) -> _Draw:
        return dataclasses.replace(self, part=self.part * parts + index, parts=self.parts * parts)

    def numbers(self, first: int) -> np.ndarray:
        return np.asarray([self.seed, self.step, self.part, self.parts, first], np.uint32)


Environment = dict[fx.Node, jax.Array]
Programs = Mapping[Hashable, jax.stages.Compiled]


@dataclass(frozen=True, eq=False)
class _RunPiece:
    """A piece and which program runs it; `dead` are values that nothing reads after it."""

    piece: Piece
    program: Hashable
    dead: tuple[fx.Node, ...]

    def __call__(self, programs: Programs, environment: Environment, draw: _Draw, running: _Running) -> None:
        scopes = [np.uint32(number) for scope in self.piece.scopes for number in scope]
        draws = [draw.numbers(self.piece.first_draw)] if self.piece.draws else []
        results = programs[self.program](*(environment[node] for node in self.piece.inputs), *scopes, *draws)
        running.add(results)
        environment.update(zip(self.piece.outputs, results, strict=True))
        for node in self.dead:
            del environment[node]


@dataclass(frozen=True, eq=False)
class _RunRepeat:
    """A loop that is run from outside.

    Attributes:
        repeat: which.
        parts: of a trip.
        start: which program makes each carried value the loop's own; None where it is already.
        take: which takes a trip's slice of each sliced value.
        stack: which puts together the trips' results.
        dead: values that nothing reads after it.
    """

    repeat: Repeat
    parts: Sequence[_RunPiece | _RunRepeat]
    start: Sequence[Hashable | None]
    take: Sequence[Hashable]
    stack: Sequence[Hashable]
    dead: tuple[fx.Node, ...]

    def __call__(self, programs: Programs, environment: Environment, draw: _Draw, running: _Running) -> None:
        carry, xs, consts = ([environment[node] for node in group] for group in self.repeat.node.args[1:])
        for node in self.dead:
            del environment[node]
        carry = [x if move is None else programs[move](x)[0] for move, x in zip(self.start, carry, strict=True)]
        rows: list[list[jax.Array]] = []
        for trip in range(self.repeat.trips):
            slices = [programs[take](x, np.uint32(trip))[0] for take, x in zip(self.take, xs, strict=True)]
            inner = dict(zip(self.repeat.body.inputs, [*carry, *slices, *consts], strict=True))
            for part in self.parts:
                part(programs, inner, draw.of_part(trip, self.repeat.trips), running)
            results = [inner[node] for node in self.repeat.body.results]
            carry = results[: len(carry)]
            rows.append(results[len(carry) :])
        stacked = [programs[join](*column)[0] for join, column in zip(self.stack, zip(*rows, strict=True), strict=True)]
        results = [*carry, *stacked]
        environment.update((node, results[node.args[1]]) for node in self.repeat.outputs)


@dataclass
class _Running:
    """The pieces that were handed to the devices and may not have run yet."""

    results: deque[jax.Array] = field(default_factory=deque)

    def add(self, results: Sequence[jax.Array]) -> None:
        """Wait until at most `_AHEAD` are behind this one."""
        self.results.extend(results[:1])
        while len(self.results) > _AHEAD:
            oldest = self.results.popleft()
            if not oldest.is_deleted():  # else a later piece has used it up
                oldest.block_until_ready()


class SplitProgram(Program):
    """The executables of one step graph; used like a `Program`.

    Attributes:
        plan: its pieces.
        lowered: the distinct programs that run them.
    """

    def __init__(
        self, step: StepGraph, mesh: jax.sharding.Mesh, cut: Cut, options: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Raises:
        LoweringError: an operator of the graph has no lowering.
        """
        super().__init__(step, mesh, options)
        self.plan = split(step.module, cut)
        self.lowered: dict[Hashable, jax.stages.Lowered] = {}
        self._parts = self._lower_whole()

    @functools.cached_property
    def executables(self) -> Programs:
        """The distinct executables; compiled on first use."""
        return {key: compile_with(lowered, self.options) for key, lowered in self.lowered.items()}

    def compile(self) -> None:
        _ = self.executables

    def __call__(
        self, state: State, batch: Mapping[str, jax.Array], scalars: Mapping[str, float] | None = None
    ) -> tuple[State, dict[str, jax.Array]]:
        given = self._given(state, batch, scalars)
        numbers = scalars or {}
        draw = _Draw(int(numbers.get("seed", 0)), int(numbers.get("step", 0)))
        environment = {node: given[value.name] for node, value in zip(self.plan.inputs, self.step.inputs, strict=True)}
        del given
        running = _Running()
        for part in self._parts:
            part(self.executables, environment, draw, running)
        names = (value.name for value in self.step.outputs)
        outputs = dict(zip(names, (environment[node] for node in self.plan.results), strict=True))
        metrics = {name.removeprefix("metric/"): outputs.pop(name) for name in list(outputs) if name[:7] == "metric/"}
        return {**state, **outputs}, metrics

    def _lower_whole(self) -> list[_RunPiece | _RunRepeat]:
        places = {
            node: self._signature_place(value) for node, value in zip(self.plan.inputs, self.step.inputs, strict=True)
        }
        results = {
            node: self._signature_place(value) for node, value in zip(self.plan.results, self.step.outputs, strict=True)
        }
        owned = {
            node for node, value in zip(self.plan.inputs, self.step.inputs, strict=True) if value.name in self._donated
        }
        return self._lower(self.plan, places, results, owned)

    def _lower(
        self, plan: Plan, places: dict[fx.Node, _Place], results: Mapping[fx.Node, _Place], owned: set[fx.Node]
    ) -> list[_RunPiece | _RunRepeat]:
        """Programs for the parts of a plan.

        Args:
            plan: what to lower.
            places: of the plan's inputs.
            results: of those of its results that have a place of their own.
            owned: the inputs that may be used up.
        """
        last_use = {node: i for i, part in enumerate(plan.parts) for node in part.inputs}
        kept = set(plan.results)
        owned = set(owned)
        lowered: list[_RunPiece | _RunRepeat] = []
        for i, part in enumerate(plan.parts):
            dead = tuple(n for n in dict.fromkeys(part.inputs) if last_use[n] == i and n not in kept)
            usable = {node for node in dead if node in owned}
            if isinstance(part, Repeat):
                lowered.append(self._lower_repeat(part, places, usable, dead))
            else:
                for node, on_host in zip(part.outputs, part.on_host, strict=True):
                    places[node] = results.get(node) or self._own_place(node.meta["val"], on_host)
                lowered.append(_RunPiece(part, self._lower_piece(part, places, usable), dead))
            owned.update(part.outputs)
        return lowered

    def _lower_piece(self, piece: Piece, places: Mapping[fx.Node, _Place], usable: set[fx.Node]) -> Hashable:
        inputs, outputs = [places[node] for node in piece.inputs], [places[node] for node in piece.outputs]
        free = list(outputs)  # an input that is used up becomes an output of the same kind
        donated = []
        for i, (node, place) in enumerate(zip(piece.inputs, inputs, strict=True)):
            if node in usable and place in free:
                free.remove(place)
                donated.append(i)
        run = functools.partial(self._run_piece, piece)
        extra = [_NUMBER] * (2 * len(piece.scopes)) + [_DRAW] * piece.draws
        return self._program(piece.fingerprint, run, inputs, outputs, donated, extra)

    def _run_piece(self, piece: Piece, *args: jax.Array) -> list[jax.Array]:
        """What a piece's program computes on one device."""
        draws = None
        if piece.draws:
            seed, step, part, parts, first = args[-1]
            args = args[:-1]
            device = jax.lax.axis_index(tuple(self.mesh.axis_names)).astype(np.uint32)
            draws = Draws(step_key(seed, step), first=first, part=device * parts + part)
        return Interpreter(draws).run(piece.module, *args)

    def _program(
        self,
        name: str,
        run: Callable[..., Sequence[jax.Array]],
        inputs: Sequence[_Place],
        outputs: Sequence[_Place],
        donated: Sequence[int] = (),
        extra: Sequence[jax.ShapeDtypeStruct] = (),
    ) -> Hashable:
        """Lower `run`, a function of each device's values, once for all of this name and of such values; returns what
        the program is found by. What is `extra` is small and the same on every device."""
        key = (name, tuple(inputs), tuple(outputs), tuple(donated))
        if key not in self.lowered:

            def on_device(*args: jax.Array) -> list[jax.Array]:
                values = [place.unbox(x) for place, x in zip(inputs, args, strict=False)]
                results = run(*values, *args[len(inputs) :])
                return [place.box(x) for place, x in zip(outputs, results, strict=True)]

            mapped = jax.shard_map(
                on_device,
                mesh=self.mesh,
                in_specs=(*(place.spec for place in inputs), *(PartitionSpec() for _ in extra)),
                out_specs=[place.spec for place in outputs],
                check_vma=False,
            )
            shardings = [self._sharding(place) for place in outputs]
            jitted = jax.jit(mapped, donate_argnums=tuple(donated), out_shardings=shardings)
            specs = [jax.ShapeDtypeStruct(place.shape, place.dtype, sharding=self._sharding(place)) for place in inputs]
            self.lowered[key] = jitted.lower(*specs, *extra)
        return key

    def _sharding(self, place: _Place) -> NamedSharding:
        return NamedSharding(self.mesh, place.spec, memory_kind="pinned_host" if place.on_host else None)

    def _signature_place(self, value: Value) -> _Place:
        spec = sharding(value, self.mesh).spec
        return _Place(value.shape, carried(value.dtype), spec, on_host=value.memory == "host")

    def _own_place(self, value: Tensor, on_host: bool = False) -> _Place:
        local = tuple(value.shape)
        first, *rest = local or (1,)
        spec = PartitionSpec(tuple(self.mesh.axis_names))
        shape = (first * self.mesh.size, *rest)
        return _Place(shape, carried(value.dtype), spec, on_host, boxed=not local)

    def _lower_repeat(
        self, repeat: Repeat, places: dict[fx.Node, _Place], usable: set[fx.Node], dead: tuple[fx.Node, ...]
    ) -> _RunRepeat:
        carry, xs, consts = repeat.node.args[1:]
        body = repeat.body
        own = [self._own_place(node.meta["val"]) for node in body.inputs[: len(carry) + len(xs)]]
        inner = dict(zip(body.inputs, [*own, *(places[node] for node in consts)], strict=True))
        results = dict(zip(body.results, own[: len(carry)], strict=False))
        parts = self._lower(body, inner, results, set(body.inputs[: len(own)]))
        ys = [inner[node] for node in body.results[len(carry) :]]
        for node in repeat.outputs:
            places[node] = self._own_place(node.meta["val"])
        stacked = [self._own_place(value) for value in repeat.node.meta["val"][len(carry) :]]
        owned = [node in usable and places[node] == place for node, place in zip(carry, own, strict=False)]
        return _RunRepeat(
            repeat,
            parts,
            start=[
                None if is_owned else self._program("move", _list, [places[node]], [place])
                for node, place, is_owned in zip(carry, own, owned, strict=False)
            ],
            take=[
                self._program("take", _take, [places[node]], [place], extra=[_NUMBER])
                for node, place in zip(xs, own[len(carry) :], strict=True)
            ],
            stack=[
                self._program("stack", _stack, [place] * repeat.trips, [whole])
                for whole, place in zip(stacked, ys, strict=True)
            ],
            dead=dead,
        )


_NUMBER = jax.ShapeDtypeStruct((), np.uint32)
_DRAW = jax.ShapeDtypeStruct((5,), np.uint32)
"""What a piece that draws is given: `_Draw.numbers()`."""


def _list(x: jax.Array) -> list[jax.Array]:
    return [x]


def _take(x: jax.Array, index: jax.Array) -> list[jax.Array]:
    return [jax.lax.dynamic_index_in_dim(x, index, keepdims=False)]


def _stack(*slices: jax.Array) -> list[jax.Array]:
    return [jnp.stack(slices)]
