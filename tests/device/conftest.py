"""Both ways in which operators run on `tpu`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=["immediate", "deferred"])
def eager_mode(request: pytest.FixtureRequest) -> Iterator[str]:
    torch.tpu.eager_mode = request.param
    yield request.param
    torch.tpu.eager_mode = "immediate"
