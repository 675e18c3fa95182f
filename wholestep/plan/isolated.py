"""Compiling in a process of its own: the TPU compiler ends the process that it runs in when something is wrong with it,
or takes more memory than the machine has."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from wholestep.errors import DeviceMemoryError, WholestepError
from wholestep.plan.compiled import Compiled
from wholestep.plan.job import Job

_POLL_SECONDS = 0.5
_LEFT_BYTES = 512 * 2**20


class CompilerError(WholestepError):
    """The compiler failed at a program, other than by finding that it does not fit the device."""


class CompilerTimeoutError(CompilerError):
    """The compiler was not done in time."""


def compile_isolated(
    job: Job, progress: Callable[[float, int], None] = lambda seconds, size: None, timeout: float | None = None
) -> Compiled:
    """`compile_job` in a child process.

    Args:
        job: what to compile. It is built here first, so that what is wrong with it is said at once.
        progress: told twice a second of the seconds that passed and the bytes of memory that the child has.
        timeout: seconds after which to give up.

    Raises:
        WholestepError: what is wrong with the job.
        DeviceMemoryError: the program is too large even to be placed.
        CompilerError: the compiler crashed, or ran out of this machine's memory.
        CompilerTimeoutError: it ran out of time.
    """
    job.mesh(job.build())
    command = [sys.executable, "-m", "wholestep.plan", json.dumps(dataclasses.asdict(job))]
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT) as child:
            try:
                _watch(child, progress, timeout)
            finally:
                child.kill()
        output.seek(0)
        lines = output.read().strip().splitlines()
    if child.returncode:
        raise CompilerError(f"the compiler crashed at this program (exit {child.returncode}): {_last_words(lines)}")
    answer = json.loads(lines[-1])
    if "needed" in answer:
        raise DeviceMemoryError(**answer)
    if "error" in answer:
        raise WholestepError(answer["error"])
    return Compiled(Path(answer["directory"]))


def _watch(child: subprocess.Popen[bytes], progress: Callable[[float, int], None], timeout: float | None) -> None:
    started = time.monotonic()
    while child.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_SECONDS)
        seconds = time.monotonic() - started
        with contextlib.suppress(psutil.NoSuchProcess):
            size = psutil.Process(child.pid).memory_info().rss
            progress(seconds, size)
            if psutil.virtual_memory().available < _LEFT_BYTES:
                raise CompilerError(
                    f"the compiler took {size / 2**30:.1f} GiB, all that this machine has: plan with fewer layers "
                    "(--layers 4) or on a machine with more memory"
                )
        if timeout is not None and seconds > timeout:
            raise CompilerTimeoutError(f"the compiler was not done after {timeout:.0f} s")


def _last_words(lines: list[str]) -> str:
    """What the compiler said: its failed check, or its last line."""
    return next((line for line in lines if "Check failed" in line), lines[-1] if lines else "without a word")
