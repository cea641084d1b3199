"""PyTorch's iterators that a script doesn't get from a DataLoader: its class wraps them, or another loader drives them.

Batches are seen where PyTorch's iterator gives them. Graph libraries put an iterator of their own around it, and
fastai's loader, which is no DataLoader, makes one by itself; Ultralytics' makes one past its class's ``__iter__``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from ..call_sites import user_stack
from ..identities import ByIdentity
from ..patches import patch
from ..session import Session
from ..sources import TrainingSources
from .loader_places import LOADER_KNOBS, Loader, as_written
from .types import Arguments, DataLoader, LoaderIterator

FOREIGN = "{}, which is no DataLoader, makes the batches"


class MadeIterators:
    """``sources``: what feeds the training. ``of_object``: loader or iterator → what is known of it."""

    def __init__(
        self, session: Session, torch: ModuleType, sources: TrainingSources[Loader],
        of_object: ByIdentity[Loader],
    ) -> None:
        self._session = session
        self._torch = torch
        self._sources = sources
        self._of_object = of_object
        self._base: type = object
        self._foreign: dict[str, Callable[[], object]] = {}  # the source's key → its newest loader
        self._newest: ByIdentity[Callable[[], LoaderIterator | None]] = ByIdentity()
        self._loader_of: weakref.WeakKeyDictionary[LoaderIterator, Callable[[], DataLoader | None]] = (
            weakref.WeakKeyDictionary()
        )

    def install(self, base: type) -> None:
        """Patches the iterators of loaders."""
        self._base = base
        patch(base, "__init__", self._init)

    def within(self, loader: DataLoader, iterator: LoaderIterator) -> LoaderIterator:
        """What gives the batches of an iterator that the loader has just made: itself, or PyTorch's inside of it."""
        if isinstance(iterator, self._base):
            return iterator
        newest = self._newest.get(loader)
        return (newest() if newest is not None else None) or iterator

    def past_iter(
        self, iterator: LoaderIterator, begins: Callable[[Loader, DataLoader, LoaderIterator], None]
    ) -> Loader | None:
        """What is known of the loader whose class has made an iterator past ``__iter__``, as Ultralytics' does."""
        loader = self._loader_of.get(iterator, lambda: None)()
        entry = self._of_object.get(loader) if loader is not None else None
        if loader is not None and entry is not None:
            self._sources.iteration_began(entry, 0.0)
            begins(entry, loader, iterator)
        return entry

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(iterator: LoaderIterator, loader: Any, *args: object, **kwargs: object) -> None:
            original(iterator, loader, *args, **kwargs)
            if not self._session.here:
                return
            if isinstance(loader, self._torch.utils.data.DataLoader):
                self._newest[loader], self._loader_of[iterator] = weakref.ref(iterator), weakref.ref(loader)
                return
            with suppress(TypeError):  # nothing can refer to it weakly
                entry = self._of_object[iterator] = self._entry(loader)
                self._sources.iteration_began(entry, 0.0)
                entry.newest = weakref.ref(iterator)
                entry.live.update(
                    num_workers=entry.written["num_workers"], prefetch_factor=getattr(loader, "prefetch_factor", None)
                )

        return __init__

    def _entry(self, loader: Any) -> Loader:
        entry = self._of_object.get(loader)
        if entry is None:
            stack = user_stack()
            made_here = self._sources.at(stack)
            # Made anew with each epoch it stays the same; several of one place, such as fastai's, live together.
            entry = next((each for each in made_here if self._foreign.get(each.key, object)() is None), None)
            entry = entry or self._sources.add(foreign(loader, f"{stack}#{len(made_here)}", stack))
            self._of_object[loader], self._foreign[entry.key] = entry, weakref.ref(loader)
        return entry


def foreign(loader: object, key: str, stack: str) -> Loader:
    """A loader which is no DataLoader, at its first iteration: measured, and not turned."""
    given: Arguments = {
        "batch_size": None, "num_workers": getattr(loader, "num_workers", 0),
        "pin_memory": getattr(loader, "pin_memory", False),
        "persistent_workers": getattr(loader, "persistent_workers", False),
    }  # fmt: skip
    kind, (package, *_) = type(loader).__name__, type(loader).__module__.split(".")
    name = kind if package == "__main__" else f"{package}'s own loader"
    refused = dict.fromkeys(LOADER_KNOBS, FOREIGN.format(name))
    return Loader(key, stack, written=as_written(given), refused=refused, map_style=False, made=1)
