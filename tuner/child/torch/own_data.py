"""Whether other workers than the script's may read its data: what they hold, and whether they stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType

from ..data_state import State, state_of, values
from .copies import copied
from .datasets import reference
from .open_files import is_open
from .reached import reached
from .types import DataLoader

CHANGED = "its data change between epochs"
READING = ("__getitem__", "__getitems__", "__call__")
"""Methods by which data of a map style are read."""


def obstacle(loader: DataLoader) -> str:
    """Why workers that start within an epoch, and are stopped at any moment, can't read the loader's data, or ""."""
    held = list(values({**copied(loader), "worker_init_fn": getattr(loader, "worker_init_fn", None)}))
    told = [(path, value) for path, value, _ in held]
    used = reached([value for _, value in told], READING)
    told += [(f"a {type(value).__name__} that its data use", value) for value in used]
    # Several workers of the script's own read well what they share, or don't read well as written.
    shares = getattr(loader, "num_workers", 0) > 1
    for name, value in told:
        if _is_shared(value):
            return f"{name} is shared by processes: one that is stopped may keep the others waiting for it"
        if not shares and is_open(value):
            return f"{name} is open: workers that start within an epoch would share the place at which it is read"
    return ""


def _is_shared(value: object) -> bool:
    package, _, module = type(value).__module__.partition(".")
    return package in ("multiprocessing", "multiprocess") and module not in ("context", "process")


class DataWatch:
    """Looks at the training data whenever the script begins an epoch, and when another loader is made for it."""

    def __init__(self) -> None:
        self.changed = False
        """Whether they were others than the time before, once."""
        self._objects: tuple[Callable[[], object], ...] = ()
        self._state: State | None = None

    @property
    def has_looked(self) -> bool:
        """Whether there is anything that later looks are compared with."""
        return self._state is not None

    def look(self, loader: DataLoader) -> None:
        """Compares the loader's data with those of the time before: the objects, and what can be reached from them."""
        if self.changed:
            return  # once is enough, and no look is needed any more
        parts = [*_parts(loader.dataset), *_parts(loader.collate_fn)]
        state = state_of(copied(loader))
        if self._state is not None:
            alike = len(parts) == len(self._objects)
            same = alike and all(known() is part for known, part in zip(self._objects, parts, strict=True))
            self.changed = not same or state != self._state
        if self.changed:
            self._objects, self._state = (), None
            return
        self._objects, self._state = tuple(_known(part) for part in parts), state


def _parts(value: object) -> list[object]:
    """What tells it from others: a method of an object is made anew whenever it is asked for."""
    return [value.__self__, value.__func__] if isinstance(value, MethodType) else [value]


def _known(value: object) -> Callable[[], object]:
    """Keeps no data alive; but what can't be referred to weakly is a list, say, which lasts where it is the same."""
    refer = reference(value)
    return refer if refer() is value else lambda: value
