"""The table of kernels under test: for each, the calls that it is compared with its plain path on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from wholestep.config.node import Node
from wholestep.kernels import KERNELS, Kernel
from wholestep.models.layers.mixture import WeightedSwiGLU


@dataclass(frozen=True)
class Call:
    """One call of a block.

    Attributes:
        settings: what the slot declares, and so both the kernel and its plain path take.
        own: of the kernel alone.
        tensors: the arguments; those of floating point are random.
        parts: modules that the block is built with.
    """

    settings: dict[str, object]
    own: dict[str, object]
    tensors: dict[str, Tensor]
    parts: tuple[nn.Module, ...] = ()

    def arguments(self, dtype: torch.dtype) -> list[Tensor]:
        """The arguments in `dtype`, leaves that require a gradient where they are of floating point."""
        cast = [x.to(dtype) if x.is_floating_point() else x for x in self.tensors.values()]
        return [x.clone().requires_grad_() if x.is_floating_point() else x for x in cast]


def build(node: type[Node], call: Call) -> nn.Module:
    known = {field.name for field in fields(node)}
    config = node(**{name: value for name, value in {**call.settings, **call.own}.items() if name in known})
    return config.build(*call.parts)


@st.composite
def attention(draw: st.DrawFn) -> Call:
    """Packed rows with padding, of lengths that no block divides."""
    B, L, K, G = (draw(st.integers(1, most)) for most in (2, 300, 2, 3))
    H = draw(st.sampled_from([64, 128, 256]))
    settings = {
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 40)),
        "soft_cap": draw(st.none() | st.just(3.0)),
        "scale": draw(st.none() | st.just(0.2)),
    }
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    segment_ids = (torch.rand(B, L, generator=generator) < 0.03).cumsum(1) + 1
    segment_ids[torch.rand(B, L, generator=generator) < draw(st.sampled_from([0.0, 0.1]))] = 0
    heads = {"q": K * G, "k": K, "v": K}
    tensors = {name: torch.randn(B, L, count, H, generator=generator) for name, count in heads.items()}
    blocks = draw(st.sampled_from([{}, {"block_q": 128, "block_kv": 256}, {"block_q": 256, "block_kv": 128}]))
    return Call(settings, blocks, {**tensors, "segment_ids": segment_ids})


@st.composite
def label_logits(draw: st.DrawFn) -> Call:
    """Vocabularies and rows that tiles do not divide, labels masked and out of range."""
    B, L, D, V = (draw(st.integers(1, most)) for most in (3, 20, 40, 90))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    labels = torch.randint(-3, V + 3, (B, L), generator=generator)
    labels[torch.rand(B, L, generator=generator) < 0.3] = -100
    tensors = {
        "x": torch.randn(B, L, D, generator=generator),
        "weight": torch.randn(V, D, generator=generator),
        "labels": labels,
    }
    settings = {"multiplier": draw(st.sampled_from([1.0, 0.3])), "soft_cap": draw(st.none() | st.just(4.0))}
    return Call(settings, {"tile": draw(st.none() | st.integers(1, 100))}, tensors)


@st.composite
def route_score(draw: st.DrawFn) -> Call:
    """One expert's rows, or every expert's."""
    R, F = (draw(st.integers(1, most)) for most in (20, 40))
    shape = (*draw(st.sampled_from([(), (3,)])), R, F)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    gate, up = (torch.randn(shape, generator=generator) for _ in range(2))
    return Call({}, {}, {"gate": gate, "up": up, "scores": torch.rand(R, generator=generator)})


@st.composite
def experts(draw: st.DrawFn) -> Call:
    """Experts with no rows among them, and shapes that tiles do not divide."""
    sizes = draw(st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any))
    D, F = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    shapes = {"gate": (F, D), "up": (F, D), "down": (D, F)}
    weights = {name: torch.randn(len(sizes), *shape, generator=generator) for name, shape in shapes.items()}
    rows, scores = torch.randn(sum(sizes), D, generator=generator), torch.rand(sum(sizes), generator=generator)
    tensors = {"rows": rows, "scores": scores, "group_sizes": torch.tensor(sizes), **weights}
    return Call({}, {}, tensors, (WeightedSwiGLU(),))


CALLS: dict[str, Callable[[], st.SearchStrategy[Call]]] = {
    "splash": attention,
    "fused": label_logits,
    "route_score": route_score,
    "grouped_matmul": experts,
    "ragged_dot": experts,
}


def kernel(name: str) -> Kernel:
    return next(kernel for kernel in KERNELS if kernel.name == name)
