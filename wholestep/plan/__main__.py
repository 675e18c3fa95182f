"""One job compiled in a process of its own: `python -m wholestep.plan JOB`, a `Job` as JSON.

The last line of the output, as JSON, is the result's folder in the cache, the memory of a device that cannot hold the
program, or what is wrong. The process ends when its standard input does, so that none is left behind.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from wholestep.errors import DeviceMemoryError, WholestepError
from wholestep.plan.compiled import compile_job
from wholestep.plan.job import Job


def main(text: str) -> None:
    """Compile and say where the result is."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()
    }
    answer: dict[str, Any]
    try:
        answer = {"directory": str(compile_job(Job(**fields)).directory)}
    except DeviceMemoryError as error:
        answer = {"needed": error.needed, "available": error.available}
    except WholestepError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    main(sys.argv[1])
