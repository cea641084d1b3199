"""Which threads are within a training call of a module, and which calls are parts of such a call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .types import Module


class _Here(threading.local):
    """Of the thread that asks."""

    inside = False


class OutermostCalls:
    """Models that train in several threads are each called by themselves; a model's own threads call parts of it."""

    def __init__(self) -> None:
        self._here = _Here()
        self._running: dict[int, Module] = {}
        """Thread → the module whose outermost call it is in."""

    @property
    def inside(self) -> bool:
        """Whether this thread is within such a call."""
        return self._here.inside

    def covers(self, module: Module) -> bool:
        """Whether a call of the module is a part of one that is under way, in this thread or in another one."""
        return self._here.inside or (bool(self._running) and self._is_part(module))

    def _is_part(self, module: Module) -> bool:
        # DataParallel calls copies of its module, each in a thread of its own, and marks them.
        if "_is_replica" in vars(module):
            return True
        outermost = [root for root in list(self._running.values()) if root is not module]
        return any(part is module for root in outermost for part in root.modules())

    @contextmanager
    def entered(self, module: Module) -> Iterator[None]:
        """Around the outermost call of a module."""
        self._here.inside = True
        self._running[threading.get_ident()] = module
        try:
            yield
        finally:
            self._running.pop(threading.get_ident(), None)
            self._here.inside = False
