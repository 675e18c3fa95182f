"""Samples of every operator that has a lowering: one row a sample, `test_lowering.py` runs them all.

A row is the operator and its arguments. What PyTorch gives for them is what the lowering must give: value, shape and
dtype. A row with `reference` compares with that function instead, where PyTorch's own has no CPU kernel.
"""

from __future__ import annotations

from xla.samples import elementwise, indexing, linear_algebra, networks, reductions
from xla.samples.table import Sample, row

SAMPLES: list[Sample] = [*elementwise.ROWS, *reductions.ROWS, *indexing.ROWS, *linear_algebra.ROWS, *networks.ROWS]

__all__ = ["SAMPLES", "Sample", "row"]
