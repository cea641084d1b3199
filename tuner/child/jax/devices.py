"""On how many devices a script computes: what the results of its first step lie on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..session import Session
from .deferred import is_there

MOST_CALLS = 8
"""Of functions that train so many are looked at, whether they run on other devices by turns."""
OF_OTHER_PROCESSES = "the script's arrays lie on devices of several processes: a trial has one process"
BY_TURNS = (
    "the script hands its devices their parts one after the other, each by a call of its own: which of these calls make"
    " up a step isn't seen"
)


class DeviceWatch:
    """``count``: those that the first step's results lie on; 0 as long as none was taken. ``platforms``: JAX's names of
    their kinds.

    Several are studied where all of them are this trial's one (``Device.may_be_several``).
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.count = 0
        self.platforms: frozenset[str] = frozenset()
        self._calls = 0
        self._alone: dict[object, set[object]] = {}

    def first_step(self, leaves: Iterable[Any]) -> None:
        """Its results. Ends a trial that computes on what can't be measured."""
        shardings = [leaf.sharding for leaf in leaves if hasattr(leaf, "sharding")]
        self.count = max((len(sharding.device_set) for sharding in shardings), default=1)
        self.platforms = frozenset(device.platform for sharding in shardings for device in sharding.device_set)
        if not self.session.measuring:
            return
        self.session.facts.devices = self.count
        if not all(getattr(sharding, "is_fully_addressable", True) for sharding in shardings):
            self._refuse(OF_OTHER_PROCESSES)
        elif self.count > 1 and not self.session.device.may_be_several:
            self._refuse(f"the script computes on {self.count} devices at once: a trial has one")

    def trained_on(self) -> int:
        """The same, for ``autotune run``."""
        return self.count

    def ran(self, owner: object, made: Sequence[Any]) -> None:
        """A call that trains, and some of what it gave, of which what waits for further calls isn't asked. Calls of one
        owner, each on another device, are no steps.
        """
        if self._calls >= MOST_CALLS or not self.session.measuring:
            return
        given = [leaf for leaf in made if is_there(leaf)]
        if not given:
            return
        self._calls += 1
        places = [leaf.sharding.device_set for leaf in given if hasattr(leaf, "sharding")]
        alone = self._alone.setdefault(owner, set())
        alone.update(*(place for place in places if len(place) == 1))
        if len(alone) > 1:
            self._refuse(BY_TURNS)

    def _refuse(self, why: str) -> None:
        self.session.fail("unsupported", why)
        self.session.stop(why, complete=False)
