"""Shows a study while it runs: a live view on a terminal, lines everywhere else.

Receives events and fetches nothing; what is shown after the end is ``tuner.report``'s. Imports values and
``tuner.formatting``.
"""

from __future__ import annotations

from rich.console import Console

from tuner.progress.live import LiveView
from tuner.progress.plain import PlainView

View = LiveView | PlainView

__all__ = ["LiveView", "PlainView", "View", "view_for"]


def view_for(console: Console) -> View:
    """The view that suits where the console writes to."""
    return LiveView(console) if console.is_terminal and not console.is_dumb_terminal else PlainView(console)
