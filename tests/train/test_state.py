"""A state from a Hugging Face directory: each shard has its own rows, whatever tensors they lie in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from models.families import FAMILIES, Family, hf_tensors, randomize

from wholestep.checkpoint.huggingface import Reader, write
from wholestep.config.override import replace
from wholestep.pipeline import Recipe, eval_program
from wholestep.recipes.registry import find
from wholestep.train.state import state_from_huggingface
from wholestep.xla.devices import device_mesh
from wholestep.xla.stacking import unstack

# Of its 5 experts of 12 and of 32 rows, 3 and 8 devices have parts.
(QWEN3_MOE,) = (family for family in FAMILIES if str(family) == "qwen3_moe")


def recipe_of(family: Family, devices: int) -> Recipe:
    recipe = find(f"{family}_debug").function()
    changes = {"model": family.tiny(False), "mesh.fsdp": devices, "batch_size": devices, "sequence_length": 8}
    for path, value in {**changes, "layers.execution": "loop"}.items():
        recipe = replace(recipe, path, value)
    return recipe


@pytest.mark.parametrize("devices", [1, 3, 8])
def test_shards_cross_the_tensors_of_experts(devices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(QWEN3_MOE, devices)
    model = recipe.model.build()
    randomize(model)
    tensors = hf_tensors(QWEN3_MOE, model)
    write(tmp_path / "model", tensors, tensors.items(), {}, max_shard_bytes=20_000)

    values_read = 0
    read = Reader.read

    def counted(self: Reader, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        nonlocal values_read
        values = read(self, name, index)
        values_read += values.size
        return values

    monkeypatch.setattr(Reader, "read", counted)
    mesh = device_mesh(recipe.mesh)
    step = eval_program(recipe, mesh).step
    state = unstack(state_from_huggingface(recipe, step, mesh, tmp_path / "model", QWEN3_MOE.module), step, mesh)
    assert values_read == recipe.model.num_parameters()  # each once, though devices share the tensors
    for name, parameter in model.named_parameters():
        array, rows = np.asarray(state[f"parameter/{name}"]), parameter.shape[0]
        assert array.shape[0] % devices == 0
        np.testing.assert_array_equal(array[:rows], parameter.detach().numpy(), err_msg=name)
        assert not array[rows:].any(), name
