"""What runs inside a trial's process: stdlib and relative imports only, so that it never meets the user's modules.

Launched by path and mounted as ``_autotune_child``: a user's own ``tuner.py`` stays theirs. What all adapters share
lies here, a library's own in its folder; nothing here decides what a figure means. README.md tells how it works.
"""

from __future__ import annotations

from typing import Any

from . import session as _session


def suggested(name: str, default: Any) -> Any:
    """The value of knob ``name`` in this trial, or the script's own ``default``."""
    current = _session.current()
    return default if current is None else current.suggest(name, default)


def report(metrics: dict[str, float]) -> None:
    """Takes the script's own metrics into the trial's records."""
    current = _session.current()
    if current is not None:
        current.report(metrics)
