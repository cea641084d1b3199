"""Post-import hooks: an adapter is installed right after its framework was imported, and never imports it."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from . import patches, preloaded, seeds
from .adapter import Adapter, Library, instrument
from .adapters import ADAPTERS
from .files import Overlay
from .session import Session


class PostImportFinder(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and calls its adapter once the module has been executed."""

    def __init__(self, adapters: dict[str, Callable[[ModuleType], None]]) -> None:
        self._adapters = adapters
        self._busy: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's real spec with a loader that calls the adapter afterwards."""
        if fullname not in self._adapters or fullname in self._busy:
            return None
        self._busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.discard(fullname)
        if spec is not None and spec.loader is not None:
            _call_after_exec(spec.loader, self._adapters[fullname])
        return spec


def _call_after_exec(loader: Any, adapter: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        loader.exec_module = execute
        execute(module)
        adapter(module)

    loader.exec_module = exec_module


def install(session: Session, overlay: Overlay | None) -> Callable[[], list[patches.Stage]]:
    """Makes every adapter in the list, and has each of its libraries instrumented when that is imported.

    A library that is never imported costs nothing. Without ``overlay`` no files are diverted. What is given back is to
    be called when all else is in place: it does the same for what a fork server had imported, and says what is then
    due to ``patches.give_to_others``.
    """
    if session.request.seed is not None:
        seeds.install(session.request.seed)

    def instrumenting(adapter: Adapter) -> Callable[[ModuleType], None]:
        def call(module: ModuleType) -> None:
            try:
                instrument(session, adapter, module, overlay)
            except Exception as error:
                # An adapter that doesn't fit this version must not take the user's script down.
                session.note(f"{module.__name__} could not be instrumented: {type(error).__name__}: {error}")
                if session.applied is not None and adapter.libraries[module.__name__].is_framework:
                    session.applied.unwatched.append(module.__name__)

        return call

    made = [make(session) for make in ADAPTERS]
    waiting = {name: instrumenting(adapter) for adapter in made for name in adapter.libraries}
    sys.meta_path.insert(0, PostImportFinder(waiting))
    return lambda: _make_up(waiting)


def _make_up(waiting: dict[str, Callable[[ModuleType], None]]) -> list[patches.Stage]:
    """For what was imported already: acts in the order of the imports. What is then to be given to later ones."""
    state = preloaded.here
    if state is None:
        return []
    stages: list[patches.Stage] = [(0, state.before)]
    for name, modules in state.completed:
        stages.append((patches.count(), modules))
        if name in waiting and name in sys.modules:
            waiting[name](sys.modules[name])
    return stages


def divert(session: Session, overlay: Overlay) -> None:
    """Has each library write and read where the overlay says, and does nothing else to it."""

    def diverting(library: Library) -> Callable[[ModuleType], None]:
        def call(module: ModuleType) -> None:
            if library.divert is not None:
                with contextlib.suppress(Exception):  # a version that doesn't fit: the trial's process says so
                    library.divert(overlay, module)

        return call

    libraries = {name: library for make in ADAPTERS for name, library in make(session).libraries.items()}
    waiting = {name: diverting(library) for name, library in libraries.items() if library.divert is not None}
    for name in waiting.keys() & sys.modules.keys():
        waiting[name](sys.modules[name])
    sys.meta_path.insert(0, PostImportFinder(waiting))
