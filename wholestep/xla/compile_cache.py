"""JAX's persistent compilation cache, and a count of what it saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache


def enable_compile_cache(directory: Path) -> None:
    """Keep every compiled program in `directory`, and find it there next time."""
    directory.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


@contextmanager
def without_compile_cache() -> Iterator[None]:
    """Neither look into the cache nor add to it while this is open: for programs that it cannot give back, those for
    devices that are not here."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX decides once in a process, unless reset, whether there is one
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


@dataclass
class CompileCounts:
    """What happened while it was counted.

    Attributes:
        programs: programs that XLA was asked for: compiled or found in the cache.
        hits: of these, found in the persistent cache.
    """

    programs: int = 0
    hits: int = 0

    @property
    def compiled(self) -> int:
        """Programs that were really compiled."""
        return self.programs - self.hits


@contextmanager
def count_compiles() -> Iterator[CompileCounts]:
    """Count this process's XLA compilations while the context is open."""
    counts = CompileCounts()

    def on_duration(event: str, seconds: float, **kwargs: object) -> None:
        counts.programs += event == "/jax/core/compile/backend_compile_duration"

    def on_event(event: str, **kwargs: object) -> None:
        counts.hits += event == "/jax/compilation_cache/cache_hits"

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    jax.monitoring.register_event_listener(on_event)
    try:
        yield counts
    finally:
        jax.monitoring.unregister_event_duration_listener(on_duration)
        jax.monitoring.unregister_event_listener(on_event)
