"""The persistent compilation cache: what one process compiled, the next one finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from wholestep.xla.compile_cache import CompileCounts, count_compiles

TESTS = Path(__file__).parents[1]

# A whole run in small: parameters made on the mesh, one training step.
RUN = """
import json, sys
from pathlib import Path
from wholestep.xla.compile_cache import count_compiles, enable_compile_cache
from wholestep.xla.devices import configure_devices
configure_devices()
enable_compile_cache(Path(sys.argv[1]))
from graph.small_step import Stack
from wholestep.parallel import Mesh
from xla.small_program import run_step, start
with count_compiles() as counts:
    _, metrics = run_step(start(Stack(), Mesh(replicate=2, fsdp=2), microbatches=2))
print(json.dumps([counts.programs, counts.compiled, float(metrics["loss"])]))
"""


def test_counts_what_is_compiled_while_it_is_open() -> None:
    program = jax.jit(lambda x: jnp.sin(x) * 3)
    with count_compiles() as counts:
        program(jnp.ones(3))
        once = counts.programs
        program(jnp.ones(3))
    program(jnp.ones(4))
    assert 1 <= once == counts.programs
    assert 0 <= counts.compiled <= counts.programs


def test_found_programs_are_not_compiled() -> None:
    assert CompileCounts(programs=5, hits=3).compiled == 2


def run_in_a_process(cache: Path, hash_seed: str) -> tuple[int, int, float]:
    """(programs, of these compiled, loss)"""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(cache)]
    done = subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    programs, compiled, loss = json.loads(done.stdout.splitlines()[-1])
    return programs, compiled, loss


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    programs, compiled, loss = run_in_a_process(tmp_path / "new" / "cache", hash_seed="1")
    assert 0 < compiled <= programs
    again = run_in_a_process(tmp_path / "new" / "cache", hash_seed="2")
    assert again == (programs, 0, pytest.approx(loss, abs=0))
