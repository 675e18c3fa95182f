"""The captured step against single-process eager PyTorch: loss, every gradient, the optimizer's state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import (
    TOLERANCE,
    KeepGradients,
    captured,
    eager_loss,
    fields,
    load,
    random_batch,
    relative_error,
    tiny_config,
    unpadded,
)

from wholestep.graph.optimizer import AdamW
from wholestep.parallel import Mesh, Policy

LENGTH = 12
MESHES = [Mesh(), Mesh(fsdp=2), Mesh(fsdp=6), Mesh(fsdp=8), Mesh(replicate=2, fsdp=4)]


def on_meta(tied: bool):
    with torch.device("meta"):
        return tiny_config(tied).build()


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_loss_and_every_gradient(mesh: Mesh, microbatches: int) -> None:
    rows = mesh.size * microbatches
    run = captured(on_meta(tied=False), KeepGradients(), fields(rows, LENGTH), mesh, microbatches=microbatches)
    reference = tiny_config().build()
    load(reference, run.state)
    batch = random_batch(rows, LENGTH, 53, seed=1)
    loss = eager_loss(reference, batch)
    loss.backward()

    state, metrics = run.program(run.state, run.program.place_batch(batch), {"learning_rate": 0.0, "step": 1})

    assert float(metrics["loss"]) == pytest.approx(loss.item(), rel=TOLERANCE[torch.float32])
    gradients = unpadded(state, "grad", reference)
    for name, parameter in reference.named_parameters():
        error = relative_error(gradients[name], parameter.grad.numpy())
        assert error < TOLERANCE[torch.float32], f"gradient of {name} is off by {error:.1e}"


CASES = [(mesh, microbatches, False) for mesh in MESHES for microbatches in (1, 4)]
CASES += [(mesh, 1, True) for mesh in (Mesh(), Mesh(fsdp=8), Mesh(replicate=2, fsdp=4))]


@pytest.mark.parametrize(("mesh", "microbatches", "tied"), CASES, ids=str)
def test_ten_steps_of_adamw(mesh: Mesh, microbatches: int, tied: bool) -> None:
    rows, optimizer = mesh.size * microbatches, AdamW(lr=1e-3, clip_norm=0.5)
    run = captured(on_meta(tied), optimizer, fields(rows, LENGTH), mesh, microbatches=microbatches)
    reference = tiny_config(tied).build()
    load(reference, run.state)
    adamw = torch.optim.AdamW(
        reference.parameters(), lr=1e-3, betas=optimizer.betas, eps=optimizer.eps, weight_decay=optimizer.weight_decay
    )
    state = run.state
    for step in range(1, 11):
        batch = random_batch(rows, LENGTH, 53, seed=step)
        adamw.param_groups[0]["lr"] = lr = 1e-3 * step / 10
        adamw.zero_grad()
        loss = eager_loss(reference, batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), optimizer.clip_norm)
        adamw.step()
        state, metrics = run.program(state, run.program.place_batch(batch), {"learning_rate": lr, "step": step})
        assert float(metrics["loss"]) == pytest.approx(loss.item(), rel=TOLERANCE[torch.float32])
        assert float(metrics["grad_norm"]) == pytest.approx(norm.item(), rel=TOLERANCE[torch.float32])
    for prefix in ("parameter", "exp_avg", "exp_avg_sq"):
        for name, value in unpadded(state, prefix, reference).items():
            parameter = reference.get_parameter(name)
            expected = parameter.detach() if prefix == "parameter" else adamw.state[parameter][prefix]
            error = relative_error(value, expected.numpy())
            assert error < TOLERANCE[torch.float32], f"{prefix} of {name} is off by {error:.1e}"


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(fsdp=8)], ids=str)
def test_a_first_moment_in_bf16(mesh: Mesh) -> None:
    """A step computes in fp32 from what is stored, and stores the moment rounded."""
    optimizer = AdamW(lr=1e-2, clip_norm=None, exp_avg_dtype="bfloat16")
    run = captured(on_meta(tied=False), optimizer, fields(mesh.size, LENGTH), mesh)
    reference = tiny_config().build()
    load(reference, run.state)
    adamw = torch.optim.AdamW(
        reference.parameters(), lr=1e-2, betas=optimizer.betas, eps=optimizer.eps, weight_decay=optimizer.weight_decay
    )
    state = run.state
    for step in (1, 2, 3):
        batch = random_batch(mesh.size, LENGTH, 53, seed=step)
        adamw.zero_grad()
        eager_loss(reference, batch).backward()
        adamw.step()
        state, _ = run.program(state, run.program.place_batch(batch), {"learning_rate": 1e-2, "step": step})
        assert {str(a.dtype) for n, a in state.items() if n.startswith("exp_avg/")} == {"bfloat16"}
        moments = unpadded(state, "exp_avg", reference)
        for name, value in unpadded(state, "parameter", reference).items():
            parameter = reference.get_parameter(name)
            assert relative_error(value, parameter.detach().numpy()) < TOLERANCE[torch.float32], name
            moment, rounded = adamw.state[parameter]["exp_avg"], torch.from_numpy(moments[name].astype(np.float32))
            torch.testing.assert_close(rounded, moment, rtol=2**-8, atol=1e-7)
            moment.copy_(rounded)


@pytest.mark.parametrize("mesh", [Mesh(fsdp=8), Mesh(replicate=2, fsdp=4)], ids=str)
def test_bf16_gather_and_fp32_reduce(mesh: Mesh) -> None:
    policy = Policy(gather_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    run = captured(on_meta(tied=False), KeepGradients(), fields(mesh.size, LENGTH), mesh, policy)
    collectives = {"all_gather_into_tensor": set(), "reduce_scatter_tensor": set()}
    for node in run.program.step.module.graph.nodes:
        for name, dtypes in collectives.items():
            if name in str(node.target):
                dtypes.add(node.meta["val"].dtype)
    assert collectives == {"all_gather_into_tensor": {torch.bfloat16}, "reduce_scatter_tensor": {torch.float32}}

    reference = tiny_config().build()
    load(reference, run.state)
    batch = random_batch(mesh.size, LENGTH, 53, seed=1)
    loss = eager_loss(reference, batch)
    loss.backward()
    state, metrics = run.program(run.state, run.program.place_batch(batch), {"learning_rate": 0.0, "step": 1})
    assert float(metrics["loss"]) == pytest.approx(loss.item(), rel=TOLERANCE[torch.bfloat16])
    gradients = unpadded(state, "grad", reference)
    for name, parameter in reference.named_parameters():
        error = relative_error(gradients[name], parameter.grad.numpy())
        assert error < TOLERANCE[torch.bfloat16], f"gradient of {name} is off by {error:.1e}"
        assert np.isfinite(gradients[name]).all()


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(fsdp=4)], ids=str)
def test_packed_documents_equal_documents_apart(mesh: Mesh) -> None:
    """Four documents, packed two in a row and one in a row each, give one loss and one set of gradients."""
    lengths, rng = [(5, 7), (3, 9), (11, 1), (6, 6)], np.random.default_rng(0)
    documents = [[rng.integers(0, 53, (2, length)) for length in pair] for pair in lengths]

    def rows(groups: list[list[np.ndarray]]) -> dict[str, np.ndarray]:
        batch = {name: np.zeros((len(groups), LENGTH), np.int64) for name in fields(1, 1)}
        batch["labels"][:] = -100
        for row, group in enumerate(groups):
            start = 0
            for number, (tokens, labels) in enumerate(group, start=1):
                here = (row, slice(start, start + len(tokens)))
                batch["tokens"][here], batch["labels"][here] = tokens, labels
                batch["positions"][here], batch["segment_ids"][here] = np.arange(len(tokens)), number
                start += len(tokens)
        return batch

    results = []
    for groups in (documents, [[document] for pair in documents for document in pair]):
        run = captured(on_meta(tied=False), KeepGradients(), fields(len(groups), LENGTH), mesh)
        batch = run.program.place_batch(rows(groups))
        state, metrics = run.program(run.state, batch, {"learning_rate": 0.0, "step": 1})
        results.append((float(metrics["loss"]), unpadded(state, "grad", tiny_config().build())))
    (packed_loss, packed), (loss, apart) = results
    assert packed_loss == pytest.approx(loss, rel=TOLERANCE[torch.float32])
    for name, gradient in apart.items():
        assert relative_error(packed[name], gradient) < TOLERANCE[torch.float32], name
