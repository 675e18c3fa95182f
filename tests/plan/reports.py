"""Made-up reports with the proportions of a real one: an 8B model on eight slices, layers in a forward and a backward
loop."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import get_args

from wholestep.plan.report import (
    Buffer,
    Finding,
    Kind,
    Loop,
    Memory,
    MemoryPoint,
    Operator,
    Remedy,
    Report,
    Span,
    Speed,
    Traffic,
    Work,
)

GIB = 2**30
LAYERS = 32
NETWORKS = ("ICI fsdp", "DCN replicate")
ATTENTION = (
    ("input_layernorm", "elementwise", 0.21, "norm.py:31"),
    ("self_attn.q_proj", "matmul", 0.88, "attention.py:88"),
    ("self_attn.k_proj", "matmul", 0.24, "attention.py:89"),
    ("self_attn.v_proj", "matmul", 0.24, "attention.py:90"),
    ("self_attn.rope", "elementwise", 0.31, "rope.py:52"),
    ("self_attn.inner", "kernel", 1.62, "splash_attention.py:140"),
    ("self_attn.o_proj", "matmul", 0.88, "attention.py:104"),
)
FEED_FORWARD = (
    ("post_attention_layernorm", "elementwise", 0.21, "norm.py:31"),
    ("mlp.gate_proj", "matmul", 1.86, "feed_forward.py:24"),
    ("mlp.up_proj", "matmul", 1.86, "feed_forward.py:25"),
    ("mlp.activation", "elementwise", 0.37, "feed_forward.py:26"),
    ("mlp.down_proj", "matmul", 1.86, "feed_forward.py:27"),
)


@dataclass
class Step:
    """A folded step as it grows."""

    now: float = 0.0
    trips: int = 1
    spans: list[Span] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    held: dict[Kind, float] = field(default_factory=lambda: dict.fromkeys(get_args(Kind), 0.0))
    curve: list[MemoryPoint] = field(default_factory=list)

    def add(self, lane: str, work: Work, start: float, seconds: float, module: str, line: str = "", exposed: float = 0):
        name = f"{ {'matmul': 'fusion', 'elementwise': 'loop_fusion'}.get(work, work) }.{len(self.spans)}"
        span = Span(
            lane=lane, start=start, end=start + seconds, work=work, name=name, module=module, line=line,
            trips=self.trips, exposed=exposed,
        )  # fmt: skip
        self.spans.append(span)

    def compute(self, work: Work, milliseconds: float, module: str, line: str = "", **gib: float):
        """Something on the compute lane that leaves so many GiB more, or less, of a kind behind."""
        self.add("compute", work, self.now, milliseconds / 1e3, module, line)
        for kind, more in gib.items():
            self.held[kind.replace("_", " ")] += more
        self.point(self.now + milliseconds / 2e3, temporaries=0.6 if work == "matmul" else 0.2)
        self.now += milliseconds / 1e3
        self.point(self.now)

    def point(self, at: float, temporaries: float = 0.0):
        held = {**self.held, "temporaries": self.held["temporaries"] + temporaries}
        self.curve.append(MemoryPoint(at=at, by_kind={kind: int(gib * GIB) for kind, gib in held.items()}))

    def wait(self, lane: str, work: Work, seconds: float, module: str, line: str, exposed: float):
        """A transfer that started in the past and that the device waits for in its last `exposed` seconds."""
        self.now += exposed
        self.add(lane, work, self.now - seconds, seconds, module, line, exposed)

    def loop(self, body, module: str):
        start, self.trips = self.now, LAYERS
        body()
        self.loops.append(Loop(start=start, end=self.now, trips=LAYERS, module=module))
        self.trips = 1


def report(fit: bool = True, whole_layers: int = LAYERS) -> Report:
    """Of `llama3_8b`. Without `fit`, the memory is short and remedies were tried."""
    step = _step()
    memory = _memory(step, available=int(94.25 * GIB) if fit else 48 * GIB)
    speed = _speed(step)
    remedies = (
        Remedy(override="layers.keep=nothing", needed=int(29.2 * GIB), fits=True, expected=speed.expected * 1.21),
        Remedy(override="optimizer.host=true", needed=int(50.9 * GIB), fits=False, expected=speed.expected * 0.55),
    )
    return Report(
        recipe="llama3_8b", overrides=("data.sequence_length=8192", "model.layers.*.attention.inner=splash"),
        topology="tpu7x:4x4x8", slices=8, chips=1024, devices=2048, mesh="replicate=8,fsdp=256",
        layers=LAYERS, whole_layers=whole_layers,
        options={"xla_tpu_enable_latency_hiding_scheduler": "true", "xla_tpu_scoped_vmem_limit_kib": "65536"},
        versions={"wholestep": "0.1.0", "jax": "0.10.2", "libtpu": "0.0.42", "torch": "2.13.0"},
        compile_seconds=74.3, memory=memory, speed=speed, traffic=_traffic(step), spans=tuple(step.spans),
        loops=tuple(step.loops), operators=_operators(step), findings=_findings(),
        remedies=() if fit else remedies,
    )  # fmt: skip


def many_spans(count: int) -> Report:
    """The same step with its spans again and again, as of a model whose layers are laid out."""
    once = report()
    length = max(span.end for span in once.spans)
    spans = (
        replace(span, start=span.start + trip * length, end=span.end + trip * length)
        for trip in range(-(-count // len(once.spans)))
        for span in once.spans
    )
    return replace(once, spans=tuple(spans)[:count], loops=())


def _step() -> Step:
    step = Step()
    step.held |= {"parameters": 0.117, "optimizer state": 0.35, "batch": 0.02}
    step.point(0)
    step.add("host", "host", 0, 0.0016, "", "batch")
    step.compute("elementwise", 0.9, "model.embed_tokens", "decoder.py:61", activations=0.25)
    step.loop(lambda: _forward(step), "model.layers.*")
    step.compute("elementwise", 0.3, "model.norm", "norm.py:31")
    step.compute("matmul", 9.4, "lm_head", "decoder.py:77", gathered_weights=0.98, temporaries=6.1)
    step.compute("kernel", 5.2, "objective", "objectives.py:45", temporaries=2.2)
    step.compute("matmul", 10.1, "lm_head", "decoder.py:77", gradients=0.98, temporaries=-8.3)
    step.loop(lambda: _backward(step), "model.layers.*")
    step.compute("elementwise", 1.9, "model.embed_tokens", "decoder.py:61", gathered_weights=-1.78, activations=-38)
    step.wait("DCN replicate", "collective", 0.0312, "optimizer", "step.py:120", exposed=0.0266)
    for number in range(30):
        step.compute("elementwise", 0.21 + number % 5 * 0.08, f"optimizer.group{number}", "optimizer.py:74")
    step.compute("elementwise", 0.2, "", "", gradients=-3.4)
    step.add("host", "host", step.now - 0.001, 0.001, "", "metrics")
    return step


def _forward(step: Step) -> None:
    step.compute("elementwise", 0.08, "model.layers.*", "decoder.py:66", activations=38, gathered_weights=0.8)
    _block(step, factor=1, gather=0.4)


def _backward(step: Step) -> None:
    step.compute("copy", 0.4, "model.layers.*", "decoder.py:66", gradients=2.42)
    _block(step, factor=1, gather=0.4)
    _block(step, factor=2, gather=0, backward=True)


def _block(step: Step, factor: float, gather: float, backward: bool = False) -> None:
    for half in (ATTENTION, FEED_FORWARD):
        begin = step.now
        for position, (part, work, milliseconds, line) in enumerate(reversed(half) if backward else half):
            module = f"model.layers.*.{part}"
            for _ in range(7 if gather else 3):
                step.compute("elementwise", 0.007, module, line)
            step.compute(work, milliseconds * factor, module, line, activations=0.05 if gather else 0)
            if position % 2:
                step.add("copies", "copy", step.now - 0.0003, 0.00024, module, line)
        where = "model.layers.*.self_attn.q_proj" if half is ATTENTION else "model.layers.*.mlp.gate_proj"
        took = (step.now - begin) * 0.7
        if gather:
            step.wait("ICI fsdp", "collective", took, where, "attention.py:88", exposed=0.0004)
        if backward:
            step.wait("ICI fsdp", "collective", took, where, "attention.py:88", exposed=0.0009)
    step.held["activations"] -= 0.6 if gather else 0


def _memory(step: Step, available: int) -> Memory:
    peak = max(step.curve, key=lambda point: sum(point.by_kind.values()))
    buffers = [
        ("activations", 32.0, "bf16[32,16,8192,4096]", "model.layers.*", "decoder.py:66", "while.3"),
        ("temporaries", 6.1, "f32[16384,128256]", "lm_head", "decoder.py:77", "fusion.61"),
        ("temporaries", 2.2, "bf16[16384,65536]", "objective", "objectives.py:45", "custom-call.9"),
        ("gathered weights", 0.98, "bf16[128256,4096]", "lm_head", "decoder.py:77", "all-gather-done.2"),
        *(
            ("optimizer state", 0.05 - n / 1000, "f32[32,14336,16]", f"model.layers.*.mlp.m{n}", "", f"p.{n}")
            for n in range(8)
        ),
    ]
    return Memory(
        available=available, needed=int(sum(peak.by_kind.values()) * 1.03), by_kind=peak.by_kind,
        host=int(1.5 * GIB), curve=tuple(step.curve),
        largest=tuple(
            Buffer(size=int(gib * GIB), kind=kind, shape=shape, module=module, line=line, name=name)
            for kind, gib, shape, module, line, name in buffers
        ),
    )  # fmt: skip


def _speed(step: Step) -> Speed:
    terms: dict[Work, float] = defaultdict(float)
    for span in step.spans:
        seconds = span.end - span.start if span.lane == "compute" else span.exposed
        terms[span.work] += seconds * span.trips
    del terms["host"]
    expected = sum(terms.values())
    return Speed(
        low=expected * 0.88, expected=expected, high=expected * 1.27, terms=dict(terms),
        bound_by="products on the matrix unit", model_flops=874 * 10**12, hardware_flops=1161 * 10**12,
        hbm_bytes=1_930 * 10**9, host_bytes=260_000, mfu=874e12 / 1153.5e12 / expected,
        tokens_per_second_per_chip=2 * 16384 / expected,
        assumptions=(
            "A matmul reaches 85% of the chip's peak, 78% to 92%.",
            "ICI carries 90 GB/s each way on each axis of the torus; the axes of a mesh do not share links.",
            "DCN carries 12.5 GB/s a chip.",
            "Collectives beside other work do not slow it down.",
        ),
    )  # fmt: skip


def _traffic(step: Step) -> tuple[Traffic, ...]:
    rows = (
        ("all-gather", ("fsdp",), "ICI", 452, 30.1, 450, 0.41),
        ("reduce-scatter", ("fsdp",), "ICI", 226, 15.1, 224, 0.37),
        ("all-reduce", ("replicate",), "DCN", 1, 0.22, 0, 0.0312),
        ("all-reduce", (), "ICI", 3, 0.0, 0, 0.00004),
    )
    exposed = {
        network: sum(span.exposed * span.trips for span in step.spans if span.lane.startswith(network))
        for network in ("ICI", "DCN")
    }
    return tuple(
        Traffic(
            operation=operation, axes=axes, network=network, count=count, size=int(gib * GIB), asynchronous=beside,
            seconds=seconds, exposed=exposed[network] * (0.5 if network == "ICI" and axes else bool(axes)),
        )
        for operation, axes, network, count, gib, beside, seconds in rows
    )  # fmt: skip


def _operators(step: Step) -> tuple[Operator, ...]:
    seconds: dict[tuple[str, Work], float] = defaultdict(float)
    counts: dict[tuple[str, Work], int] = defaultdict(int)
    for span in step.spans:
        if span.lane == "compute":
            seconds[span.module, span.work] += (span.end - span.start) * span.trips
            counts[span.module, span.work] += span.trips
    return tuple(
        Operator(
            module=module, work=work, seconds=total, flops=int(total * 9.8e14) if work in ("matmul", "kernel") else 0,
            hbm_bytes=int(total * 1.1e12), count=counts[module, work],
        )
        for (module, work), total in sorted(seconds.items(), key=lambda item: -item[1])
    )  # fmt: skip


def _findings() -> tuple[Finding, ...]:
    return (
        Finding(
            kind="exposed collective",
            what="The reduce-scatter of the layers' gradients ends after what runs beside it.",
            where=(
                "model.layers.*.mlp.gate_proj (feed_forward.py:24)",
                "model.layers.*.self_attn.q_proj (attention.py:88)",
            ),
            seconds=0.0576,
            mend="xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter=true",
        ),
        Finding(
            kind="serial collective",
            what="The all-reduce over slices waits for the whole backward pass.",
            where=("optimizer (step.py:120)",),
            seconds=0.0266,
            mend="layers.split=true",
        ),
        Finding(
            kind="padded layout",
            what="`f32[32,14336,16]` takes 8 times its bytes: its last dimension is padded to 128.",
            where=("model.layers.*.mlp.down_proj (feed_forward.py:27)",),
            seconds=0,
            mend="",
        ),
    )
