"""A ledger of patched attributes: idempotent, reversible, and wearing the original's name and signature."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_ORIGINAL = "__autotune_original__"
_ledger: list[tuple[Any, str, Any]] = []


def patch(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces ``owner.name`` by ``make(original)``; a second call on the same attribute does nothing.

    Raises ``AttributeError`` when the library has no such attribute: the version doesn't fit.
    """
    original = owner.__dict__[name] if isinstance(owner, type) and name in owner.__dict__ else getattr(owner, name)
    function = original.__func__ if isinstance(original, staticmethod) else original
    if hasattr(function, _ORIGINAL):
        return
    replacement = functools.wraps(function)(make(function))
    setattr(replacement, _ORIGINAL, original)
    _ledger.append((owner, name, original))
    setattr(owner, name, staticmethod(replacement) if isinstance(original, staticmethod) else replacement)
    _be_found(owner, name, replacement)


def put(owner: Any, name: str, replacement: type) -> None:
    """Replaces a class, which keeps the name that it has. Otherwise as ``patch``."""
    original = getattr(owner, name)
    if not hasattr(original, _ORIGINAL):
        setattr(replacement, _ORIGINAL, original)
        _ledger.append((owner, name, original))
        setattr(owner, name, replacement)
        _be_found(owner, name, replacement)


def _be_found(owner: Any, name: str, replacement: Any) -> None:
    """Has it pickled by the name under which it replaces the original, where the original's leads elsewhere.

    A script may give it to a pool of processes: ``pool.map(os.stat, paths)``, whose ``os.stat`` is ``posix.stat``.
    """
    if not isinstance(owner, ModuleType):
        return
    found: Any = sys.modules.get(replacement.__module__ or "")
    for part in replacement.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # a lazy module mustn't be asked
    if found is not replacement:
        replacement.__module__, replacement.__qualname__ = owner.__name__, name


def unpatch_all() -> None:
    """Puts every original back, newest first."""
    while _ledger:
        owner, name, original = _ledger.pop()
        setattr(owner, name, original)


@contextmanager
def instead(owner: object, name: str, method: Callable[..., object]) -> Iterator[None]:
    """While it lasts one object's method is another: what an object itself has goes before what its class has.

    Past ``__setattr__``, by which libraries keep track of an object's parts.
    """
    own = vars(owner)
    had, before = name in own, own.get(name)
    own[name] = method
    try:
        yield
    finally:
        if had:
            own[name] = before
        else:
            del own[name]
