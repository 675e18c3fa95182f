"""The machine that a benchmark ran on, for its results file."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import jax
import torch


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "torch_threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "jax": jax.__version__},
    }
