"""Compiler flags that the recipes for TPU7x share."""

from __future__ import annotations

# Without the first, all-gathers become all-reduces that send twice the bytes. Without the second, products run at 49%
# to 88% of the matrix unit's rate by the compiler's cycles, with it at 76% to 95% (Llama 3 70B, docs/decisions.md).
# Collectives run on the SparseCores, beside the matrix units, by default.
DENSE = ("async_all_gather", "vmem_64m")
MIXTURE = (*DENSE, "host_offload")
