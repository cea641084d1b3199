"""Removes the temporary folders that Python itself would remove when the process ends, which a trial that is cut short
doesn't come to.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

_CLEANUP = ("tempfile", "TemporaryDirectory._cleanup")


def open_folders() -> list[Callable[[], Any]]:
    """Of each ``tempfile.TemporaryDirectory`` that is open what removes it, by what Python has noted: the class may be
    replaced by now.
    """
    registry: Any = weakref.finalize._registry  # type: ignore[attr-defined]
    calls = ((finalizer, getattr(entry.func, "__func__", None)) for finalizer, entry in list(registry.items()))
    return [
        finalizer for finalizer, called in calls
        if (getattr(called, "__module__", ""), getattr(called, "__qualname__", "")) == _CLEANUP
    ]  # fmt: skip


def remove_temporary_folders() -> None:
    """Removes those that are open. Other exit handlers aren't called: they may wait."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # that nobody closed them
        for remove in open_folders():
            try:
                remove()
            except Exception:
                pass  # still written to by another process of the script's, or it removes folders in a way of its own
