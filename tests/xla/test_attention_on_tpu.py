"""What the TPU compiler makes of a projection whose heads are rotated for an attention kernel: little is moved."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from xla.lowered import captured, lowered

from wholestep.graph.passes.plain_products import fence_products
from wholestep.graph.step import StepGraph
from wholestep.models.layers.rotary import rotate
from wholestep.parallel import Mesh
from wholestep.plan.hlo import HBM, Instruction, parse
from wholestep.plan.work import bytes_moved, flops
from wholestep.xla.topologies import topology_mesh

ROWS, LENGTH, HEADS, HEAD, WIDTH = 2, 4096, 32, 128, 1024
RESULT = ROWS * LENGTH * HEADS * HEAD * 2
"""Bytes of the projection's result in bf16."""


def projection(x_TD: Tensor, weight_DX: Tensor, cos_BLH: Tensor, sin_BLH: Tensor) -> Tensor:
    heads_BLNH = (x_TD @ weight_DX).view(ROWS, LENGTH, HEADS, HEAD)
    return rotate(heads_BLNH, cos_BLH, sin_BLH).transpose(1, 2).contiguous()


@pytest.mark.parametrize("topology", ["v6e:2x2", "tpu7x:2x2x1"])
def test_a_projection_writes_rows_and_heads_are_turned_around_once(topology: str) -> None:
    bf16 = {"dtype": torch.bfloat16, "device": "meta"}
    table = torch.empty(ROWS, LENGTH, HEAD, device="meta")
    inputs = torch.empty(ROWS * LENGTH, WIDTH, **bf16), torch.empty(WIDTH, HEADS * HEAD, **bf16), table, table
    step = fence_products(StepGraph(captured(projection, *inputs), (), (), {}))
    mesh = topology_mesh(topology, Mesh(fsdp=8 if topology.startswith("tpu7x") else 4))
    module = parse(lowered(step.module, mesh, *inputs).compile().as_text())

    def cost(instruction: Instruction) -> int:
        return flops(module, module.entry, instruction)

    product = max(module.entry.instructions, key=cost)
    assert cost(product) == 2 * ROWS * LENGTH * WIDTH * HEADS * HEAD
    written = product.arrays[-1]
    assert written.size == RESULT and written.dims[-1] == HEADS * HEAD, "the product writes bf16 rows"
    others = [each for each in module.entry.instructions if each is not product]
    moved = sum(bytes_moved(module, module.entry, each).get(HBM, 0) for each in others)
    assert moved < 5 * RESULT
