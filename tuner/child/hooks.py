"""Post-import hooks: an adapter is installed right after its framework was imported, and never imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .session import Session

Adapter = Callable[[Session, ModuleType], None]


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


def _seed_numpy(session: Session, numpy: ModuleType) -> None:
    from . import seeds

    seeds.install_numpy(session.seed or 0, numpy)


def install(session: Session) -> None:
    """Registers every adapter. One whose framework is never imported costs nothing."""
    from . import seeds, trackers
    from .keras import adapter as keras_adapter
    from .torch import adapter as torch_adapter
    from .torch import trainers

    adapters: dict[str, Adapter] = {
        "torch": torch_adapter.install, **keras_adapter.ADAPTERS, **trainers.ADAPTERS, **trackers.ADAPTERS,
    }  # fmt: skip
    if session.seed is not None:
        seeds.install(session.seed)
        adapters["numpy"] = _seed_numpy

    def guarded(adapter: Adapter) -> Callable[[ModuleType], None]:
        def call(module: ModuleType) -> None:
            try:
                adapter(session, module)
            except Exception as error:
                # An adapter that doesn't fit this version must not take the user's script down.
                session.note(f"{module.__name__} could not be instrumented: {type(error).__name__}: {error}")

        return call

    sys.meta_path.insert(0, PostImportFinder({name: guarded(adapter) for name, adapter in adapters.items()}))
