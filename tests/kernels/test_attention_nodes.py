"""What every node that computes the core of attention must get right: masks, packing, padding, extremes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import TOLERANCE, KeepGradients, captured, fields, relative_error, tiny_config
from transformers.masking_utils import sliding_window_causal_mask_function

import wholestep.kernels  # noqa: F401  registers the nodes
from wholestep.config.override import apply
from wholestep.graph.objective import Layers
from wholestep.graph.optimizer import AdamW
from wholestep.graph.partition import Keep
from wholestep.graph.policies import save_all
from wholestep.models.decoder import Decoder
from wholestep.models.layers.attention import CoreAttention
from wholestep.parallel import Mesh

NODES = list(CoreAttention.choices())


def build(node: str, **settings: object) -> torch.nn.Module:
    return CoreAttention.choices()[node](**settings).build()


def seen(node: str, segment_ids_L: torch.Tensor, **settings: object) -> torch.Tensor:
    """bool [L, M]: which keys each query's result depends on: values are the unit vectors, so results are weights."""
    L = len(segment_ids_L)
    q, k = torch.randn(1, L, 1, 64), torch.randn(1, L, 1, 64)
    v = torch.zeros(1, L, 1, 64)
    v[0, :, 0, :L] = torch.eye(L)
    weights_LM = build(node, **settings)(q, k, v, segment_ids_L[None])[0, :, 0, :L]
    rows = (segment_ids_L != 0).float()
    torch.testing.assert_close(weights_LM.sum(1), rows)
    return weights_LM > 0


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("window", [1, 4])
def test_a_window_over_16_tokens_is_transformers_own(node: str, window: int) -> None:
    index = torch.arange(16)
    expected_LM = sliding_window_causal_mask_function(window)(0, 0, index[:, None], index)
    assert torch.equal(seen(node, torch.ones(16, dtype=torch.long), window=window), expected_LM)


@pytest.mark.parametrize("node", NODES)
def test_documents_see_themselves_and_padding_sees_nothing(node: str) -> None:
    segment_ids_L = torch.tensor([1, 1, 1, 2, 2, 0, 0, 1, 3, 0])
    same_LM = (segment_ids_L[:, None] == segment_ids_L) & (segment_ids_L > 0)
    for others in (segment_ids_L * -2, segment_ids_L.to(torch.uint8) * 85):  # any numbers will do
        assert torch.equal(seen(node, others, causal=False), same_LM)
    assert torch.equal(seen(node, segment_ids_L), same_LM.tril())
    assert torch.equal(seen(node, segment_ids_L, causal=False), same_LM)
    near_LM = (torch.arange(10)[:, None] - torch.arange(10)).abs() < 2
    assert torch.equal(seen(node, segment_ids_L, causal=False, window=2), same_LM & near_LM)


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("segment", [0, 1])
def test_padding_alone_and_huge_scores_in_bf16_are_finite(node: str, segment: int) -> None:
    torch.manual_seed(0)
    shape = (1, 40, 2, 64)
    q, k, v = (
        x.bfloat16().requires_grad_() for x in (torch.randn(shape) * 300, torch.randn(shape) * 300, torch.randn(shape))
    )
    out = build(node)(q, k, v, torch.full((1, 40), segment))
    gradients = torch.autograd.grad(out.float().square().sum(), [q, k, v])
    assert all(x.isfinite().all() for x in (out, *gradients))
    assert any(x.any() for x in (out, gradients[2])) == (segment > 0)
    if segment:  # scores are so far apart that every query takes one key
        scores = (q.float()[0, :, 0] @ k.float()[0, :, 0].T).masked_fill(torch.ones(40, 40).triu(1).bool(), -torch.inf)
        torch.testing.assert_close(out[0, :, 0], v[0, scores.argmax(1), 0], rtol=0.02, atol=0.02)


LENGTHS = [(5, 7, 3), (15,), (1, 9, 4), (8, 6)]  # of the documents in each row of 16


def batches() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The same documents packed in rows, and one to a row."""
    rng = np.random.default_rng(0)
    documents = [[rng.integers(0, 53, (2, n)) for n in lengths] for lengths in LENGTHS]
    separate = [[document] for row in documents for document in row]
    separate += [[]] * (-len(separate) % 4)

    def rows(packed: list[list[np.ndarray]]) -> dict[str, np.ndarray]:
        batch = {
            name: np.zeros((len(packed), 16), np.int64) for name in ("tokens", "labels", "positions", "segment_ids")
        }
        batch["labels"] -= 100
        for i, row in enumerate(packed):
            start = 0
            for number, document in enumerate(row):
                n = document.shape[1]
                place = (i, slice(start, start + n))
                batch["tokens"][place], batch["labels"][place] = document
                batch["positions"][place], batch["segment_ids"][place] = np.arange(n), number + 1
                start += n
        return batch

    return rows(documents), rows(separate)


def model(node: str, layers: int, window: str) -> Decoder:
    settings = [
        f"layers={layers}",
        f"layers.*.attention.inner={node}",
        f"layers.*.attention.inner.window={window}",
    ]
    with torch.device("meta"):
        return apply(tiny_config(), settings).build()


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("node", NODES)
def test_packed_rows_equal_separate_documents(node: str, devices: int) -> None:
    gradients = []
    for batch in batches():
        size = fields(*batch["tokens"].shape)
        run = captured(model(node, layers=1, window="4"), KeepGradients(), size, Mesh(fsdp=devices))
        state, metrics = run.program(run.state, run.program.place_batch(batch), {"learning_rate": 0.0, "step": 1})
        kept = {name: np.asarray(value) for name, value in state.items() if name.startswith("grad/")}
        gradients.append({"loss": np.asarray(metrics["loss"]), **kept})
    packed, separate = gradients
    for name, value in packed.items():
        assert value.any()
        error = relative_error(value, separate[name])
        assert error < TOLERANCE[torch.float32], f"{name} is off by {error:.1e}"


def test_twenty_steps_with_splash_are_those_of_the_plain_path() -> None:
    packed, _ = batches()
    losses: dict[str, list[float]] = {}
    for node in NODES:
        looped = Layers(Keep(save_all), looped=True)
        module = model(node, layers=2, window="none")
        run = captured(module, AdamW(lr=1e-2), fields(4, 16), Mesh(fsdp=2), layers=looped)
        state, batch = run.state, run.program.place_batch(packed)
        for step in range(1, 21):
            state, metrics = run.program(state, batch, {"learning_rate": 1e-2, "step": step})
            losses.setdefault(node, []).append(float(metrics["loss"]))
    assert losses["splash"] == pytest.approx(losses["dot_product"], rel=1e-4)
    assert losses["splash"][-1] < 0.7 * losses["splash"][0]


@pytest.mark.parametrize("shape", [(0, 5, 2, 64), (2, 0, 2, 64)], ids=str)
@pytest.mark.parametrize("node", NODES)
def test_nothing_gives_nothing(node: str, shape: tuple[int, ...]) -> None:
    q = torch.zeros(shape, requires_grad=True)
    out = build(node)(q, q, q, torch.ones(shape[:2], dtype=torch.long))
    assert out.shape == shape
    assert torch.autograd.grad(out.sum(), q)[0].shape == shape
