"""Workers that last from one epoch to the next where the script's don't: all that it trains on stays what it was."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..patches import patch
from .copies import CopyWatch
from .types import DataLoader, LoaderIterator, Result


class LastingWorkers:
    """``chosen``: whether a loader's workers last by the config alone.

    PyTorch's loader has but one iterator then, and begins it anew. The script may still be in the middle of it, as
    where it evaluates on its training data within an epoch, or reads a loader twice at once: a second one is made then.
    """

    def __init__(self, torch: ModuleType, chosen: Callable[[DataLoader], bool], copies: CopyWatch) -> None:
        self._torch = torch
        self._chosen = chosen
        self._copies = copies
        self._ended: weakref.WeakSet[LoaderIterator] = weakref.WeakSet()

    def install(self, base: type) -> None:
        """Patches the iterators of loaders."""
        patch(base, "_reset", self._reset)
        patch(base, "__next__", self.noting_ends)

    def begin(self, loader: DataLoader, original: Callable[[DataLoader], LoaderIterator]) -> LoaderIterator:
        """The iterator of an iteration that begins now."""
        if not (self._chosen(loader) and loader.persistent_workers):
            return original(loader)
        if loader._iterator is not None and loader._iterator not in self._ended and _is_held(vars(loader), "_iterator"):
            iterator = loader._get_iterator()
            vars(iterator)["_persistent_workers"] = False  # they end with it
            return iterator
        self._copies.renew(loader)
        return original(loader)

    def noting_ends(self, original: Callable[..., Result]) -> Callable[..., Result]:
        """A patch of an iterator's ``__next__``."""

        def __next__(iterator: LoaderIterator) -> Result:
            try:
                return original(iterator)
            except StopIteration:
                self._ended.add(iterator)
                raise

        return __next__

    def _reset(self, original: Callable[..., Result]) -> Callable[..., Result]:
        """Workers that stay draw their seed once, new ones with each epoch; the order of samples comes after it."""

        def _reset(iterator: LoaderIterator, loader: DataLoader, first_iter: bool = False) -> Result:
            self._ended.discard(iterator)
            result = original(iterator, loader, first_iter)
            if not first_iter and self._chosen(loader):
                torch = self._torch
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            return result

        return _reset


def _is_held(holder: dict[str, Any], name: str) -> bool:
    """Whether anything else than this dictionary refers to its entry, such as a loop that runs over it."""
    alone = {name: object()}
    return sys.getrefcount(holder[name]) > sys.getrefcount(alone[name])
