"""`simple_fsdp` without the rest of the package: real processes, plain eager PyTorch, `torch.optim`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as multiprocessing
from parallel.training import CASES, PROCESSES, Net, Record, batch, train, work
from support import TOLERANCE, relative_error


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each process saved of each case; starting processes is what takes the time, so they run once."""
    directory = tmp_path_factory.mktemp("processes")
    multiprocessing.spawn(work, (free_port(), directory), nprocs=PROCESSES)
    return directory


@pytest.mark.parametrize("name", CASES)
def test_training_equals_one_process_on_the_whole_batch(name: str, results: Path) -> None:
    case, reference = CASES[name], Net()
    shapes = {name: parameter.shape for name, parameter in reference.named_parameters()}
    expected = train(case, reference, batch())
    for rank in range(torch.Size(case.shape).numel()):
        error = results / f"{name} {rank}.txt"
        assert not error.exists(), error.read_text()
        record = Record(*torch.load(results / f"{name} {rank}.pt"))
        assert list(record.parameters) == list(shapes)
        for got, want in [(record.gradients, expected.gradients), (record.parameters, expected.parameters)]:
            for path, tensor in got.items():
                rows = (shapes[path] or (1,))[0]
                assert not tensor[rows:].any(), f"{path} has something in its padding"
                off = relative_error(tensor[:rows].view(shapes[path]).numpy(), want[path].numpy())
                assert off < TOLERANCE[torch.float32], f"{path} is off by {off:.1e} on rank {rank}"
