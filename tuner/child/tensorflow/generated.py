"""Removes the sources that AutoGraph writes for functions it has translated, as TensorFlow does when Python ends."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from types import ModuleType

from ..patches import patch
from ..session import ExitListener, Session


class GeneratedSources(ExitListener):
    """Notes each one. What imports them has done so, and tracebacks name lines of the script's own."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._paths: list[str] = []

    def install(self) -> None:
        """Called right after ``import tensorflow``; does nothing in an applied run, which ends by itself."""
        loader = sys.modules.get("tensorflow.python.autograph.pyct.loader")
        if self._session.measuring and loader is not None:
            self._session.exit_listeners.append(self)
            patch(loader, "load_source", self._load)

    def _load(self, original: Callable[..., tuple[ModuleType, str]]) -> Callable[..., tuple[ModuleType, str]]:
        def load_source(source: str, delete_on_exit: bool) -> tuple[ModuleType, str]:
            module, path = original(source, delete_on_exit)
            if delete_on_exit and self._session.here:
                self._paths.append(path)
            return module, path

        return load_source

    def leaving(self) -> None:
        """As ``ExitListener.leaving``."""
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
