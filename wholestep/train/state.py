"""Where a run's first state comes from: initialization, a checkpoint, or a Hugging Face model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from wholestep.checkpoint.huggingface import Reader, divided
from wholestep.graph.step import StepGraph, Value
from wholestep.pipeline import Recipe, build_model, initializers
from wholestep.recipes.registry import Family
from wholestep.xla.dtypes import carried
from wholestep.xla.initialize import initialize_state
from wholestep.xla.program import State, sharding
from wholestep.xla.stacking import stack, unstack, unstacked_values


def logical_shapes(recipe: Recipe, step: StepGraph) -> dict[str, tuple[int, ...]]:
    """Name of each state value, layers apart -> the shape of the tensor it is, without padding."""
    model = build_model(recipe)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {value.name: tuple(tensors[value.name.partition("/")[2]].shape) for value in unstacked_values(step)}


def specs(step: StepGraph, mesh: jax.sharding.Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Name of each state value, layers apart -> its stored shape, dtype and sharding."""
    return {
        value.name: jax.ShapeDtypeStruct(value.shape, carried(value.dtype), sharding=sharding(value, mesh))
        for value in unstacked_values(step)
    }


def initial_state(recipe: Recipe, step: StepGraph, mesh: jax.sharding.Mesh) -> State:
    """The state that `recipe.seed` gives."""
    return initialize_state(step, initializers(recipe), mesh, recipe.seed)


def state_from_huggingface(
    recipe: Recipe, step: StepGraph, mesh: jax.sharding.Mesh, directory: Path, family: Family
) -> State:
    """Parameters from a Hugging Face directory, everything else as at the start of a run. Each shard reads only its
    own rows from the files.

    Raises:
        CheckpointError: a tensor is missing, left over or has another shape.
    """
    reader = Reader(directory)
    model = build_model(recipe)
    names = {name: family.hf_names(name, recipe.model) for name, _ in model.named_parameters()}
    expected = dict(part for name, parameter in model.named_parameters() for part in divided(names[name], parameter))
    reader.require(expected, family.hf_left_out)
    state = unstack(initial_state(recipe, step, mesh), step, mesh)
    for value in unstacked_values(step):
        if value.kind == "parameter":
            state[value.name] = _read_sharded(reader, names[value.name.removeprefix("parameter/")], value, mesh)
    return stack(state, step, mesh)


def _read_sharded(reader: Reader, names: Sequence[str], value: Value, mesh: jax.sharding.Mesh) -> jax.Array:
    """What the tensors called `names` hold, one under the other; past their last row, the padding is zero."""
    shape = reader.shape(names[0])
    rows = shape[0] if shape else 1

    def shard(index: tuple[slice, ...]) -> np.ndarray:
        first, last, _ = index[0].indices(value.shape[0])
        result = np.zeros((last - first, *value.shape[1:]), carried(value.dtype))
        for number in range(first // rows, min(-(-last // rows), len(names))):
            start = number * rows
            wanted = slice(max(first, start), min(last, start + rows))
            own = slice(wanted.start - start, wanted.stop - start)
            read = reader.read(names[number], (own, *index[1:]) if shape else ())
            result[wanted.start - first : wanted.stop - first] = read
        return result

    return jax.make_array_from_callback(value.shape, sharding(value, mesh), shard)
