"""Grain in the list of adapters: it trains nothing, and feeds what does."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from ..adapter import Adapter, Library
from ..session import Session
from ..watch import Watch
from . import NAME
from .feed import GrainFeed
from .watch import GrainWatch

OLDEST = (0, 2)


class GrainAdapter(Adapter):
    """One trial's instrumentation."""

    framework = NAME

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def libraries(self) -> Mapping[str, Library]:
        """Grain itself; ``grain.python`` imports it."""
        return {"grain": Library(self.install, oldest=OLDEST)}

    def install(self, grain: ModuleType) -> None:
        """Watches its loaders."""
        if not self.session.uses(Watch.LOADER):
            return
        watch = GrainWatch(self.session, grain)
        watch.install()
        feed = GrainFeed(watch)
        self.session.feeds.add(feed)
        if self.session.applied is not None:
            self.session.applied.attend(feed.effects)
