"""Compiler flags that the recipes for v6e share."""

from __future__ import annotations

DENSE = ("latency_hiding", "async_all_gather", "all_gather_fusion", "vmem_96m")
