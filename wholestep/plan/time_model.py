"""How long the parts of a compiled step take: rooflines and the compiler's cycles, with constants in one table.

docs/time-model.md holds it against what is published. Constants that no document gives are assumptions: they have a
best, a likely and a worst value, and a step time is given for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wholestep.plan.costs import Cost
from wholestep.plan.hlo import CMEM, HBM, HOST, VMEM
from wholestep.plan.network import Collective
from wholestep.xla.chips import Chip
from wholestep.xla.rates import HOST_BYTES_PER_SECOND

Case = Literal["best", "likely", "worst"]
CASES: tuple[Case, ...] = ("best", "likely", "worst")


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A figure that the model rests on and that neither a compiler nor a data sheet gives.

    Attributes:
        name: what it is.
        best, likely, worst: for the shortest, the expected and the longest time.
        unit: of the three.
        why: what the values rest on.
    """

    name: str
    best: float
    likely: float
    worst: float
    unit: str
    why: str

    def __getitem__(self, case: Case) -> float:
        return float(getattr(self, case))

    def __str__(self) -> str:
        return f"{self.name}: {self.likely:g} {self.unit} ({self.best:g} to {self.worst:g}); {self.why}"


MATMUL = Constant(
    name="matmul efficiency",
    best=0.95,
    likely=0.85,
    worst=0.7,
    unit="of peak",
    why="where the compiler gives no cycles; bf16 products of 8,192 cubed have 70% to 90% by its cycles",
)
ATTENTION = Constant(
    name="attention kernels",
    best=0.65,
    likely=0.5,
    worst=0.35,
    unit="of peak",
    why="an assumption: the compiler has no cycles for Pallas kernels",
)
GROUPED = Constant(
    name="other Pallas kernels (grouped matmul)",
    best=0.8,
    likely=0.6,
    worst=0.4,
    unit="of peak",
    why="an assumption: the compiler has no cycles for Pallas kernels",
)
MEMORY = Constant(
    name="HBM efficiency",
    best=1.0,
    likely=0.85,
    worst=0.7,
    unit="of the published rate",
    why="an assumption; element-wise work and copies are timed by their bytes",
)
VECTOR_MEMORY = Constant(
    name="VMEM rate",
    best=22,
    likely=16,
    worst=8,
    unit="times HBM's",
    why="an assumption, after 'How to Scale Your Model' (Austin et al. 2025), which gives about 22",
)
LINKS = Constant(
    name="interconnect efficiency",
    best=0.95,
    likely=0.8,
    worst=0.5,
    unit="of all links that a group has",
    why="an assumption: nothing in the compiler implies a link's rate",
)
HOP = Constant(
    name="latency of a link",
    best=0.5e-6,
    likely=1e-6,
    worst=2e-6,
    unit="s a hop",
    why="an assumption, after 'How to Scale Your Model', which gives about 1 us",
)
DATA_CENTER = Constant(
    name="data center network",
    best=0.9,
    likely=0.7,
    worst=0.4,
    unit="of the published rate",
    why="an assumption",
)
HOST_LINK = Constant(
    name="host link",
    best=1.0,
    likely=0.8,
    worst=0.5,
    unit=f"of {HOST_BYTES_PER_SECOND / 1e9:g} GB/s a chip each way",
    why="an assumption: no rate is published; that of 16 lanes of PCIe 4.0",
)
OVERHEAD = Constant(
    name="start of an operation",
    best=0.2e-6,
    likely=0.5e-6,
    worst=1e-6,
    unit="s",
    why="an assumption",
)
CONSTANTS = (MATMUL, ATTENTION, GROUPED, MEMORY, VECTOR_MEMORY, LINKS, HOP, DATA_CENTER, HOST_LINK, OVERHEAD)
DCN_BYTES_PER_SECOND = 12.5e9
"""Of a chip whose data center network no document gives; an assumption (100 Gbit/s, as of v6e and TPU7x)."""


def kernel_efficiency(cost: Cost) -> Constant:
    """Of a Pallas kernel."""
    return ATTENTION if "attention" in cost.origin.operator else GROUPED


@dataclass(frozen=True)
class TimeModel:
    """Seconds on one device of a chip, with the constants of one case."""

    chip: Chip
    case: Case

    @property
    def clock(self) -> float:
        """Cycles a second of the TensorCore: between what can be inferred at least and at most."""
        slow, fast = self.chip.clock_hz
        return {"best": fast, "likely": (slow + fast) / 2, "worst": slow}[self.case]

    def seconds(self, cost: Cost) -> float:
        """Of an instruction alone, without waiting for what started earlier."""
        if cost.awaits is not None:
            return 0.0
        memory = self.memory_seconds(cost)
        match cost.work:
            case "matmul":
                transfer = self.collective_seconds(cost.collective) if cost.collective else 0.0
                taken = max(self.matmul_seconds(cost), memory, transfer)
            case "kernel":
                rate = self._flops_per_second * kernel_efficiency(cost)[self.case]
                taken = max(cost.flops / rate, memory)
            case "collective":
                assert cost.collective is not None
                taken = self.collective_seconds(cost.collective)
            case "host":
                rate = HOST_BYTES_PER_SECOND / self.chip.devices * HOST_LINK[self.case]
                taken = max(cost.moved.get(HOST, 0) / rate, memory)
            case _:
                taken = memory
        return taken + OVERHEAD[self.case]

    def matmul_seconds(self, cost: Cost) -> float:
        """By the compiler's cycles where it gives them."""
        cycles = cost.instruction.estimated_cycles
        if cycles is not None:
            return cycles / self.clock
        return cost.flops / (self._flops_per_second * MATMUL[self.case])

    def memory_seconds(self, cost: Cost) -> float:
        """Of its bytes in the device's memory and in the core's."""
        hbm = self.chip.hbm_bytes_per_second / self.chip.devices
        vmem = hbm * VECTOR_MEMORY[self.case]
        near = cost.moved.get(VMEM, 0) + cost.moved.get(CMEM, 0)
        return max(cost.moved.get(HBM, 0) / (hbm * MEMORY[self.case]), near / vmem)

    def collective_seconds(self, collective: Collective) -> float:
        """Over the links that the compiler's algorithm uses, or all that the chip of the group with the fewest has,
        at once: rings along every dimension of the torus. The devices of one chip take what they have in common once.
        Between slices each device sends what it has left after its own slice."""
        group = collective.group
        passes = 2.0 if collective.operation == "all-reduce" else 1.0
        seconds = 0.0
        if group.chips > 1:
            rate = collective.links * self.chip.ici_bytes_per_second * LINKS[self.case]
            travels = collective.whole * (group.chips - 1) / group.chips
            if collective.operation == "collective-permute":
                rate, travels = self.chip.ici_bytes_per_second * LINKS[self.case], float(collective.whole)
            elif "all-to-all" in collective.operation:
                travels *= max(group.hops, 1) / 2  # each byte takes half of the group's length on average
            seconds += passes * (travels / rate + group.hops * HOP[self.case])
        if group.slices > 1:
            rate = (self.chip.dcn_bytes_per_second or DCN_BYTES_PER_SECOND) / self.chip.devices * DATA_CENTER[self.case]
            within = group.size // group.slices
            share = 1.0 if collective.operation == "collective-permute" else (group.slices - 1) / group.slices / within
            seconds += passes * collective.whole * share / rate
        if group.chips == 1 and group.slices == 1:  # the two devices of a chip
            seconds += passes * collective.whole / (self.chip.hbm_bytes_per_second * MEMORY[self.case])
        return seconds

    @property
    def _flops_per_second(self) -> float:
        return self.chip.peak_flops / self.chip.devices
