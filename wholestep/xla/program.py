"""A step graph on a mesh of devices: lowered, compiled once, run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from wholestep.graph.step import StepGraph, Value
from wholestep.xla.draws import Draws
from wholestep.xla.dtypes import carried, to_program
from wholestep.xla.flags import compile_with
from wholestep.xla.interpret import Interpreter, check_operators

State = dict[str, jax.Array]
"""Name of a state value (`parameter/...`, `exp_avg/...`, `buffer/...`) -> its global array."""


def sharding(value: Value, mesh: jax.sharding.Mesh) -> NamedSharding:
    """Where `value` lives on `mesh`."""
    spec = PartitionSpec(*(axes or None for axes in value.placement))
    return NamedSharding(mesh, spec, memory_kind="pinned_host" if value.memory == "host" else None)


class Program:
    """The executable of one step graph.

    State that the step replaces is donated: each new buffer takes the place of the old. State that it only reads
    (frozen parameters, buffers) is kept.

    Attributes:
        step: the graph.
        mesh: the JAX mesh that it runs on, of the graph's axes.
        options: flags that it is compiled with (`wholestep.xla.flags`).
    """

    def __init__(
        self, step: StepGraph, mesh: jax.sharding.Mesh, options: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Raises:
        LoweringError: an operator of the graph has no lowering.
        """
        check_operators(step.module)
        self.step = step
        self.mesh = mesh
        self.options = options
        replaced = {value.name for value in step.outputs}
        self._donated = [value.name for value in step.state() if value.name in replaced]
        self._read = [value.name for value in step.state() if value.name not in replaced]
        self._batch = [value for value in step.inputs if value.kind == "batch"]
        self._scalars = [value for value in step.inputs if value.kind == "scalar"]

    def lower(self) -> jax.stages.Lowered:
        """The program for the shapes of the step's signature; nothing is compiled or allocated."""
        specs = {
            value.name: jax.ShapeDtypeStruct(value.shape, carried(value.dtype), sharding=sharding(value, self.mesh))
            for value in self.step.inputs
        }
        donated = {name: specs.pop(name) for name in self._donated}
        return self._jitted.lower(donated, specs)

    @functools.cached_property
    def executable(self) -> jax.stages.Compiled:
        """The compiled program, made on first use; shapes are the signature's, so there is never a second one."""
        return compile_with(self.lower(), self.options)

    def compile(self) -> None:
        """Compile now rather than when the first step runs."""
        _ = self.executable

    def place_batch(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """This process's rows of each field -> global arrays on the mesh.

        Raises:
            ValueError: a field is missing or unknown, has another shape than the step was captured for, or holds an
                integer that does not fit 32 bits.
        """
        fields = {value.name.removeprefix("batch/"): value for value in self._batch}
        if set(batch) != set(fields):
            raise ValueError(f"the step takes batch fields {sorted(fields)}, got {sorted(batch)}")
        placed = {}
        for name, value in fields.items():
            rows = to_program(name, np.asarray(batch[name]), value.dtype)
            expected = (value.shape[0] // jax.process_count(), *value.shape[1:])
            if rows.shape != expected:
                raise ValueError(f"batch field {name!r} has shape {rows.shape}; the step was captured for {expected}")
            placed[name] = jax.make_array_from_process_local_data(sharding(value, self.mesh), rows)
        return placed

    def __call__(
        self, state: State, batch: Mapping[str, jax.Array], scalars: Mapping[str, float] | None = None
    ) -> tuple[State, dict[str, jax.Array]]:
        """Run one step; returns at once, with arrays that are ready later.

        Args:
            state: consumed where the step replaces it.
            batch: from `place_batch`.
            scalars: name -> value, without the `scalar/`.

        Returns:
            The state after the step, and the metrics by name, without the `metric/`.
        """
        given = self._given(state, batch, scalars)
        new, metrics = self.executable({name: given.pop(name) for name in self._donated}, given)
        return {**state, **new}, metrics

    def _given(
        self, state: State, batch: Mapping[str, jax.Array], scalars: Mapping[str, float] | None
    ) -> dict[str, jax.Array]:
        """Every input of the step by name, scalars on the mesh."""
        given = {name: state[name] for name in (*self._donated, *self._read)}
        given.update((f"batch/{name}", array) for name, array in batch.items())
        for value in self._scalars:
            number = np.asarray((scalars or {})[value.name.removeprefix("scalar/")], carried(value.dtype))
            given[value.name] = jax.device_put(number, sharding(value, self.mesh))
        return given

    @functools.cached_property
    def _jitted(self) -> Any:
        inputs = {value.name: sharding(value, self.mesh) for value in self.step.inputs}
        outputs = {value.name: sharding(value, self.mesh) for value in self.step.outputs}
        metrics = [name for name in outputs if name.startswith("metric/")]
        kept = [name for name in inputs if name not in self._donated]
        taken = {name: inputs[name] for name in self._donated}, {name: inputs[name] for name in kept}
        given = (
            {name: outputs[name] for name in self._donated},
            {name.removeprefix("metric/"): outputs[name] for name in metrics},
        )

        def run(donated: State, rest: dict[str, jax.Array]) -> tuple[State, dict[str, jax.Array]]:
            values = {**donated, **rest}
            flat = Interpreter(self._draws(values)).run(self.step.module, *(values[name] for name in inputs))
            results = dict(zip(outputs, flat, strict=True))
            state = {name: result for name, result in results.items() if name in donated}
            return state, {name.removeprefix("metric/"): results[name] for name in metrics}

        in_specs, out_specs = jax.tree.map(lambda place: place.spec, (taken, given))
        mapped = jax.shard_map(run, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return jax.jit(mapped, donate_argnums=0, out_shardings=given)

    def _draws(self, given: Mapping[str, jax.Array]) -> Draws | None:
        """Where a step draws from: its seed and number, and where in the batch this device's rows are."""
        if "scalar/seed" not in given:
            return None
        step = given["scalar/step"] if "scalar/step" in given else np.uint32(0)
        return Draws(step_key(given["scalar/seed"], step), part=jax.lax.axis_index(tuple(self.mesh.axis_names)))


def step_key(seed: jax.Array, step: jax.Array | np.generic) -> jax.Array:
    """The key that the random numbers of a run's step are drawn from."""
    return jax.random.wrap_key_data(jnp.stack([seed, step.astype(np.uint32)]), impl="threefry2x32")
