"""PyTorch's operator database against the lowerings: a tenth of the samples of every entry, the same in every run.
`make test-operators` takes all of them."""

from __future__ import annotations

import pytest
from operators.apart import APART, PARTLY
from operators.judge import judge
from torch.testing._internal.common_methods_invocations import op_db

ENTRIES = {entry.full_name: entry for entry in op_db}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_pytorchs_or_refused(name: str) -> None:
    verdict = judge(ENTRIES[name], part=0.1)
    assert not verdict.wrong
    if name in APART:
        assert not verdict.passed, "it passes: take it out of apart.py"
    elif name not in PARTLY:
        assert verdict.passed and not verdict.refused, verdict.refused


def test_only_entries_are_apart() -> None:
    assert set(APART) | set(PARTLY) <= set(ENTRIES)
    assert not set(APART) & set(PARTLY)
