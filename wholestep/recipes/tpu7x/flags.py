"""Compiler flags that the recipes for TPU7x share."""

from __future__ import annotations

# Without it, all-gathers become all-reduces that send twice the bytes. Collectives run on the SparseCores, beside the
# matrix units, by default.
DENSE = ("async_all_gather",)
MIXTURE = (*DENSE, "host_offload")
