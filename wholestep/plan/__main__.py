"""One job compiled in a process of its own: `python -m wholestep.plan JOB`, a `Job` as JSON.

The last line of the output, as JSON, is the result's folder in the cache, the memory of a device that cannot hold the
program, or what is wrong.
"""

from __future__ import annotations

import json
import sys
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


if __name__ == "__main__":
    main(sys.argv[1])
