"""Every test sees the CPU as eight devices; a run of the suite compiles equal programs once."""

import os
import tempfile
from pathlib import Path

from wholestep.xla.compile_cache import enable_compile_cache
from wholestep.xla.devices import configure_devices

configure_devices()


def pytest_configure(config) -> None:
    # Workers of pytest-xdist inherit the environment, and so share the directory.
    if "WHOLESTEP_TEST_CACHE" not in os.environ:
        directory = tempfile.TemporaryDirectory(prefix="wholestep-test-")
        config.add_cleanup(directory.cleanup)
        os.environ["WHOLESTEP_TEST_CACHE"] = directory.name
    enable_compile_cache(Path(os.environ["WHOLESTEP_TEST_CACHE"]) / "xla")
