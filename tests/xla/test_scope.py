"""Where an operation came from, through its name."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
from plan.compiled_program import Spec, compiled, lowered
from torch import fx

from wholestep.parallel import Mesh
from wholestep.xla.scope import Origin, origin, scope
from wholestep.xla.topologies import topology_mesh


def node(target: object, **meta: str) -> fx.Node:
    made = fx.Graph().call_function(target)
    made.meta.update(meta)
    return made


def own(x: torch.Tensor) -> torch.Tensor:
    return x


@pytest.mark.parametrize(
    ("made", "name", "expected"),
    [
        (
            node(torch.ops.aten.mm.default, module="layers.0.attention.q_proj", line="attention.py:171"),
            "layers.0.attention.q_proj[attention.py,171,aten.mm]",
            Origin("layers.0.attention.q_proj", "attention.py:171", "aten.mm"),
        ),
        (node(torch.ops.aten.add.Tensor), "[,,aten.add]", Origin("", "", "aten.add")),
        (node(own, module="head", line="llama3.py:9"), "head[llama3.py,9,own]", Origin("head", "llama3.py:9", "own")),
    ],
    ids=["a module's", "nothing known", "a function"],
)
def test_a_scope_is_read_back(made: fx.Node, name: str, expected: Origin) -> None:
    assert scope(made) == name
    assert origin(f"jit(run)/shard_map/{name}/dot_general") == expected


@pytest.mark.parametrize(
    ("op_name", "expected"),
    [
        ("", Origin()),
        ("jit(run)/shard_map/while/body/add", Origin()),
        ("jit(f)/layers.31/while/body/layers.0.up[a.py,1,aten.mm]/dot", Origin("layers.0.up", "a.py:1", "aten.mm")),
        ("jit(f)/outer[a.py,1,loop]/while/inner[b.py,2,aten.mm]/dot", Origin("inner", "b.py:2", "aten.mm")),
        ("jit(f)/b.3[,,call]/b.0.up[b.py,2,aten.mm]/dot", Origin("b.0.up", "b.py:2", "aten.mm", shared=True)),
        ("jit(f)/transpose(jvp(up[a.py,1,aten.mm]))/dot", Origin("up", "a.py:1", "aten.mm")),
    ],
    ids=["empty", "none", "in a loop", "the innermost counts", "shared", "differentiated"],
)
def test_the_innermost_scope_counts(op_name: str, expected: Origin) -> None:
    assert origin(op_name) == expected


def test_scopes_come_through_the_compiler() -> None:
    def step(x: jax.Array, w: jax.Array) -> jax.Array:
        with jax.named_scope("layers.3.up[mlp.py,12,aten.mm]"):
            return jnp.tanh(x @ w)

    mesh = topology_mesh("v6e:2x2", Mesh(fsdp=4))
    program = compiled(lowered(step, mesh, Spec(), ((256, 256), Spec()), ((256, 256), Spec())))
    found = {origin(each.op_name) for each in program.module.entry.instructions} - {Origin()}
    assert found == {Origin("layers.3.up", "mlp.py:12", "aten.mm")}
