"""What the real TPU compiler makes of the kernels: that they compile, forward and backward, and what they save."""

from __future__ import annotations

import jax
import pytest
import torch
from torch import Tensor, nn
from xla.lowered import captured, lowered

from wholestep.graph.trace import gradients
from wholestep.kernels.fused_cross_entropy import FusedCrossEntropy
from wholestep.kernels.route_score import FusedRouteScore
from wholestep.kernels.splash_attention import SplashAttention
from wholestep.models.layers.mixture import WeightedSwiGLU
from wholestep.parallel import Mesh
from wholestep.xla.memory_use import MemoryUse, compile_for_tpu
from wholestep.xla.topologies import topology_mesh

CHIPS = {"v6e:2x2": 4, "tpu7x:2x2x1": 8}


def compiled(topology: str, module: nn.Module, *inputs: Tensor) -> jax.stages.Compiled:
    """Forward and backward in one program; gradients of the results come in as arguments."""
    results = module(*(x.new_empty(x.shape, device="meta") for x in inputs))
    outputs = [results] if isinstance(results, Tensor) else list(results)

    def step(*arguments: Tensor) -> list[Tensor]:
        given, tangents = arguments[: len(inputs)], arguments[len(inputs) :]
        given = [x.requires_grad_() if x.is_floating_point() else x for x in given]
        found = module(*given)
        found = [found] if isinstance(found, Tensor) else list(found)
        return [*found, *gradients(found, [x for x in given if x.is_floating_point()], tangents)]

    arguments = [*inputs, *outputs]
    mesh = topology_mesh(topology, Mesh(fsdp=CHIPS[topology]))
    return compile_for_tpu(lowered(captured(step, *arguments), mesh, *arguments))


def bf16(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def integers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


SETTINGS = {
    "causal": {},
    "window": {"window": 1024},
    "full": {"causal": False},
    "soft cap": {"soft_cap": 30.0},
}


@pytest.mark.parametrize(
    ("topology", "head_dim", "setting", "length"),
    [
        ("v6e:2x2", 64, "causal", 4096),
        ("v6e:2x2", 128, "causal", 4097),
        ("v6e:2x2", 256, "window", 4096),
        ("v6e:2x2", 128, "full", 100),
        ("tpu7x:2x2x1", 128, "soft cap", 4096),
        ("tpu7x:2x2x1", 256, "causal", 4096),
        ("tpu7x:2x2x1", 64, "window", 4097),
    ],
)
def test_splash_attention(topology: str, head_dim: int, setting: str, length: int) -> None:
    heads, kv_heads = 8, 2
    q, k = bf16(1, length, heads, head_dim), bf16(1, length, kv_heads, head_dim)
    program = compiled(topology, SplashAttention.Config(**SETTINGS[setting]).build(), q, k, k, integers(1, length))
    assert program.as_text().count("splash_mha") > 1
    if length > 1000:
        scores = heads * length**2 * 2
        assert MemoryUse.of(program).temporaries < scores / 2


@pytest.mark.parametrize("topology", CHIPS)
def test_the_fused_losss_memory_does_not_grow_with_the_vocabulary(topology: str) -> None:
    rows, width, tile = 8192, 512, 4096
    module = FusedCrossEntropy.Config(soft_cap=20.0, tile=tile).build()
    small, large = (
        MemoryUse.of(
            compiled(topology, module, bf16(1, rows, width), bf16(vocabulary, width), integers(1, rows))
        ).temporaries
        for vocabulary in (2 * tile, 16 * tile)
    )
    # On TPU7x the compiler copies the weight's gradient into another layout. No logits are in it:
    copies, logits = 2 * 16 * tile * width * 2, rows * 16 * tile * 4
    assert large - small < copies < logits / 10


@pytest.mark.parametrize("topology", CHIPS)
def test_route_score_makes_no_fp32_copy_of_the_experts_hidden_values(topology: str) -> None:
    rows, hidden = 65536, 1536
    inputs = bf16(rows, hidden), bf16(rows, hidden), torch.empty(rows, device="meta")
    fp32_copy = rows * hidden * 4
    fused, plain = (
        MemoryUse.of(compiled(topology, node.Config().build(), *inputs)).temporaries
        for node in (FusedRouteScore, WeightedSwiGLU)
    )
    assert fused < fp32_copy / 4
    assert fused <= plain
