"""What JAX compiles, and how long that takes: told by JAX itself, for every function and every single operation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..records import Compile
from ..session import Session

COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's name for the time that XLA takes for one graph."""
TRACED = "/jax/core/compile/jaxpr_trace_duration"
"""Its name for the time that it takes to trace one function."""
HIT, MISS = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"
"""Its names for graphs that its cache on disk had, and for those that it hadn't."""
FIRST_STEPS = 10
"""A script compiles most of its graphs within so many."""


class CompileWatch:
    """``graphs``, ``seconds``: compiled by now, outside of validation. ``late``: of those, behind the first steps;
    ``late_steps``: after how many different ones.

    ``hits``, ``misses``: of those graphs, what JAX's cache on disk gave; none of either where it has no such cache.
    ``traces``: of any function, by now, in the thread that trains: what others trace is no part of a call here.
    ``compiled``: told there whenever XLA is through with a graph. ``is_ours``: what is compiled isn't the script's.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.graphs = 0
        self.traces = 0
        self.seconds = 0.0
        self.compiled: Callable[[], None] = lambda: None
        self.is_ours: Callable[[], bool] = lambda: False
        self.late = self.late_steps = 0
        self._newest_late = 0
        self.hits = 0
        self.misses = 0

    def install(self, jax: ModuleType) -> None:
        """Listens; nothing is patched."""
        library: Any = jax
        library.monitoring.register_event_duration_secs_listener(self._timed)
        library.monitoring.register_event_listener(self._happened)

    def _timed(self, event: str, seconds: float, **about: Any) -> None:
        if self.is_ours():
            return
        self.traces += event == TRACED and threading.get_ident() == self.session.thread
        if event == COMPILED and threading.get_ident() == self.session.thread:
            self.compiled()
        if event != COMPILED or not self.session.here or self.session.clock.validating:
            return
        self.graphs += 1
        self.seconds += seconds
        steps = self.session.clock.total_steps
        if steps >= FIRST_STEPS:
            self.late += 1
            self.late_steps += steps != self._newest_late
            self._newest_late = steps

    def _happened(self, event: str, **about: Any) -> None:
        is_scripts = not self.is_ours()
        self.hits += is_scripts and event == HIT
        self.misses += is_scripts and event == MISS

    def observe(self) -> None:
        """Sends what was compiled."""
        if self.graphs:
            self.session.recorder.emit(
                Compile(self.graphs, self.seconds, cache_hits=self.hits, cache_misses=self.misses)
            )
