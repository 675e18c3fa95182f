"""What `plan` says of a program: plain data, as it is printed, drawn, compared and written as JSON.

Bytes, FLOPs and seconds are of one device and one step unless said otherwise. Time within the step is *folded*: the
body of a loop appears once, so that the axis holds every instruction once; `Loop` says how often it runs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Work = Literal["matmul", "kernel", "elementwise", "copy", "collective", "host"]
"""What a device does: products on its matrix unit, Pallas kernels, everything that is bound by memory, changes of
layout and moves within memory, traffic between devices, traffic with the host."""

Kind = Literal["parameters", "optimizer state", "batch", "gathered weights", "gradients", "activations", "temporaries"]
"""What a buffer in a device's memory is for."""


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """One array in a device's memory at the step's peak.

    Attributes:
        size: bytes, with the padding of its layout.
        kind: what it is for.
        shape: as in HLO: `f32[4096,14336]`.
        module: path of the module that it belongs to; empty if none.
        line: of PyTorch, `attention.py:88`; empty if unknown.
        name: of the HLO instruction that makes it, or of the input.
    """

    size: int
    kind: Kind
    shape: str
    module: str
    line: str
    name: str


@dataclass(frozen=True, kw_only=True)
class MemoryPoint:
    """Bytes in use by kind at a moment of the folded step."""

    at: float
    by_kind: dict[Kind, int]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A device's memory.

    Attributes:
        available: bytes that programs can have.
        needed: at once, as the compiler says, with the program itself.
        by_kind: at the peak. Its sum is what is live there; `needed` also holds what fragments.
        host: bytes of host memory that the step needs for this device.
        largest: the largest buffers at the peak, largest first.
        curve: over the folded step.
    """

    available: int
    needed: int
    by_kind: dict[Kind, int]
    host: int
    largest: tuple[Buffer, ...]
    curve: tuple[MemoryPoint, ...]

    @property
    def fits(self) -> bool:
        return self.needed <= self.available


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Collectives of one kind over the same axes of the mesh.

    Attributes:
        operation: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `collective-permute`.
        axes: of the mesh; empty where a group is none of them.
        network: between the chips of a slice (`ICI`), or between slices (`DCN`).
        count: how often in a step, loops with all their trips.
        size: bytes that one device sends in a step.
        asynchronous: of `count`, those that run beside other work.
        seconds: that they take, exposed or not.
        exposed: seconds that the device waits for them.
    """

    operation: str
    axes: tuple[str, ...]
    network: Literal["ICI", "DCN"]
    count: int
    size: int
    asynchronous: int
    seconds: float
    exposed: float


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A predicted step time, and what it rests on.

    Attributes:
        low, expected, high: seconds a step, with the time model's constants at their best, likely and worst.
        terms: expected seconds by what the device does; they add up to `expected`.
        bound_by: the largest term, in words.
        model_flops: of the model, without what is computed again.
        hardware_flops: as the program computes them.
        hbm_bytes: to and from the device's memory.
        host_bytes: to and from the host's memory.
        mfu: model FLOPs over the chip's peak in the expected time, from 0 to 1.
        tokens_per_second_per_chip: in the expected time.
        assumptions: what the model takes for granted, one sentence each.
    """

    low: float
    expected: float
    high: float
    terms: dict[Work, float]
    bound_by: str
    model_flops: int
    hardware_flops: int
    hbm_bytes: int
    host_bytes: int
    mfu: float
    tokens_per_second_per_chip: float
    assumptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something that goes on for a while, in the first trip of the loops that it is in.

    Attributes:
        lane: `compute`, `SparseCore`, `copies`, `host`, or `ICI fsdp`, `DCN replicate`: a network and the axes.
        start, end: folded seconds.
        work: what it is.
        name: of the HLO instruction.
        module: path of the module; empty if none.
        line: of PyTorch; empty if unknown.
        trips: how often it runs in a step.
        exposed: of its seconds, those in which the device does nothing else; once.
    """

    lane: str
    start: float
    end: float
    work: Work
    name: str
    module: str
    line: str
    trips: int
    exposed: float


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop's body in the folded step, and how often it runs each time it is reached."""

    start: float
    end: float
    trips: int
    module: str


@dataclass(frozen=True, kw_only=True)
class Operator:
    """What one module spends on one kind of work in a step, all trips together."""

    module: str
    work: Work
    seconds: float
    flops: int
    hbm_bytes: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something in the schedule that costs time or memory.

    Attributes:
        kind: which rule found it: `exposed collective`, `all-gather as all-reduce`, ...
        what: one sentence.
        where: modules and lines that it comes from, `layers.*.attention.q_proj (attention.py:88)`, worst first.
        seconds: that it costs in a step; 0 where it is not known or costs memory.
        mend: the flag or setting that usually mends it; empty if none is known.
    """

    kind: str
    what: str
    where: tuple[str, ...]
    seconds: float
    mend: str


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change of the recipe that was compiled because the recipe does not fit.

    Attributes:
        override: as for `--set`.
        needed: bytes a device with it.
        fits: whether that is enough.
        expected: predicted seconds a step with it.
    """

    override: str
    needed: int
    fits: bool
    expected: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that is known of one recipe on one topology.

    Attributes:
        recipe: its name.
        overrides: what was set.
        topology: `tpu7x:4x4x8`; `slices` of them, `chips` and `devices` in all.
        mesh: `replicate=8,fsdp=256`.
        layers: of the model as compiled; `whole_layers` as the recipe has it. Where they differ, all figures are of the
            shallow copy.
        options: compiler flags, by name.
        versions: package -> version that the figures come from.
        compile_seconds: that the compiler took, also where the result was found in the cache.
        operators: the heaviest first.
    """

    recipe: str
    overrides: tuple[str, ...]
    topology: str
    slices: int
    chips: int
    devices: int
    mesh: str
    layers: int
    whole_layers: int
    options: dict[str, str]
    versions: dict[str, str]
    compile_seconds: float
    memory: Memory
    speed: Speed
    traffic: tuple[Traffic, ...]
    spans: tuple[Span, ...]
    loops: tuple[Loop, ...]
    operators: tuple[Operator, ...]
    findings: tuple[Finding, ...]
    remedies: tuple[Remedy, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON; without what only pictures need (spans and the memory curve)."""
        whole = asdict(self)
        del whole["spans"], whole["loops"], whole["memory"]["curve"]
        whole["memory"]["fits"] = self.memory.fits
        return whole
