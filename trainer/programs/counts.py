"""Counts the traces and compilations of this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax

TRACED = "/jax/core/compile/jaxpr_trace_duration"
COMPILED = "/jax/core/compile/backend_compile_duration"
CACHE_HIT = "/jax/compilation_cache/cache_hits"
"""Events of jax.monitoring. A program that is read from JAX's cache counts as compiled, too."""


@dataclass
class Counts:
    """Work on programs that this process has done."""

    traces: int = 0
    compilations: int = 0
    """Number of programs that were compiled or read from JAX's compile cache."""
    cache_hits: int = 0
    """Number of those that were read from it."""


@contextmanager
def counting() -> Iterator[Counts]:
    """Yields counts that grow with the traces and compilations of all threads."""
    counts = Counts()

    def on_duration(event: str, duration_secs: float, **_: str | int) -> None:
        counts.traces += event == TRACED
        counts.compilations += event == COMPILED

    def on_event(event: str, **_: str | int) -> None:
        counts.cache_hits += event == CACHE_HIT

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    jax.monitoring.register_event_listener(on_event)
    try:
        yield counts
    finally:
        jax.monitoring.unregister_event_listener(on_event)
        jax.monitoring.unregister_event_duration_listener(on_duration)
