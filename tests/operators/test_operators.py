"""PyTorch's operator database against the lowerings: a tenth of the samples of every entry, the same in every run.
`make test-operators` takes all of them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch
from operators.apart import APART, PARTLY
from operators.judge import judge
from torch.testing._internal.common_methods_invocations import op_db

from wholestep.xla.lowering import LOWERINGS
from wholestep.xla.lowering.registry import Lowering

ENTRIES = {entry.full_name: entry for entry in op_db}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_pytorchs_or_refused(name: str) -> None:
    verdict = judge(ENTRIES[name], part=0.1)
    assert not verdict.wrong
    if name in APART:
        assert not verdict.passed, "it passes: take it out of apart.py"
    elif name not in PARTLY:
        assert verdict.passed and not verdict.refused, verdict.refused


@pytest.mark.parametrize("wrong", [jnp.cos, lambda x: jnp.sin(x) * 1.0001, lambda x: jnp.sin(jnp.flip(x))])
def test_what_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[jax.Array], jax.Array]) -> None:
    monkeypatch.setitem(LOWERINGS, torch.ops.aten.sin.default, Lowering(wrong, False))
    verdict = judge(ENTRIES["sin"], part=0.1)
    assert "float32" in str(verdict.wrong)


def test_only_entries_are_apart() -> None:
    assert set(APART) | set(PARTLY) <= set(ENTRIES)
    assert not set(APART) & set(PARTLY)
