"""Training in real processes with nothing of the package but `simple_fsdp`. The processes import this file alone."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from wholestep.parallel import Policy, simple_fsdp

PROCESSES, ROWS, STEPS = 4, 8, 3


class Net(nn.Module):
    """Rows that no mesh of the test divides, a tied weight, a scale without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 5, bias=False)
        self.again = nn.Linear(5, 7, bias=False)
        self.again.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.second(self.first(x).tanh())) * self.scale


def batch() -> Tensor:
    return torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Record:
    """What training gave, whole: the first step's gradients, then the parameters."""

    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A mesh over the first processes, and how they train.

    Attributes:
        foreach: use the optimizer's multi-tensor implementation.
        clip: clip the gradients' global norm.
        backwards: backward passes that a step accumulates.
    """

    shape: tuple[int, ...]
    foreach: bool = False
    clip: bool = False
    backwards: int = 1


CASES = {
    "shard": Case((2,)),
    "hybrid": Case((2, 2)),
    "hybrid, foreach": Case((2, 2), foreach=True),
    "hybrid, accumulated": Case((2, 2), backwards=2),
    "hybrid, clipped": Case((2, 2), clip=True),
}


def clone(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def train(case: Case, module: nn.Module, rows: Tensor, whole: Callable[[Tensor], Tensor] = clone) -> Record:
    """A few plain steps; the loss of all ranks together is the mean over the whole batch."""
    adamw = torch.optim.AdamW(module.parameters(), lr=0.05, foreach=case.foreach)
    gradients: dict[str, Tensor] = {}
    for _ in range(STEPS):
        adamw.zero_grad()
        for part in rows.chunk(case.backwards):
            (module(part).square().sum() / ROWS).backward()
        if case.clip:
            nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        gradients = gradients or {name: whole(parameter.grad) for name, parameter in module.named_parameters()}
        adamw.step()
    return Record(gradients, {name: whole(parameter) for name, parameter in module.named_parameters()})


def work(rank: int, port: int, results: Path) -> None:
    """One of the processes: every case that it has a part in."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=PROCESSES)
    for name, case in CASES.items():
        ranks = torch.arange(torch.Size(case.shape).numel()).view(case.shape)
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("replicate", "fsdp")[-len(case.shape) :])
        if rank in ranks:
            module = simple_fsdp(Net(), mesh, Policy(reduce_dtype=torch.float32))
            try:
                record = train(
                    case, module, batch().chunk(ranks.numel())[rank], lambda tensor: tensor.detach().full_tensor()
                )
                torch.save((record.gradients, record.parameters), results / f"{name} {rank}.pt")
            except Exception:
                (results / f"{name} {rank}.txt").write_text(traceback.format_exc())
    dist.barrier()
    dist.destroy_process_group()
