"""Whether those that make a loop's batches rest: what they wait for comes back while the trial is held.

They wait for a storage or a network where they neither compute nor wait for a core.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from .making import NEWEST
from .turns import TurnGiver, are_ahead

RESTS = 0.25
"""Processes rest where they do for so much of their time."""
THREADS_REST = 0.5
"""The same of threads, whose time is known less well."""


class Rest:
    """How long worker processes rest."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[float, float]] = {}
        self._seen: dict[int, tuple[float, float]] = {}
        """Of each worker the seconds since it was first looked at, and those of them that it ran."""

    def share(self, pids: Iterable[int | None]) -> float:
        """Of their time since each of them was first looked at, with those of earlier epochs, which tell of an epoch's
        that has just begun; 1 where that can't be known.
        """
        for pid in pids:
            with suppress(OSError, ValueError):
                now, ran_s = time.monotonic(), _ran_s(f"/proc/{pid}")
                since, before_s = self._first.setdefault(pid or 0, (now, ran_s))
                self._seen[pid or 0] = now - since, ran_s - before_s
        seconds, ran_s = (sum(each) for each in zip((0.0, 0.0), *self._seen.values(), strict=True))
        return 1 - ran_s / seconds if seconds > 0 else 1.0


class OwnThreads:
    """How long threads of this process rest that make batches: nothing tells them from those that train."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float]] = deque(maxlen=NEWEST + 1)

    def share(self, count: float, computing: float) -> float:
        """Of the time of so many that are at work at once, in the newest blocks; 1 where that can't be known. It is to
        be asked once a block.

        ``computing``: so many threads train at most, on average, which is taken off. Threads that wait for each other,
        as Python's do for its lock, pass for ones that rest.
        """
        ran_s = 0.0
        with suppress(OSError):
            ran_s = _ran_s("/proc/self")
        self._looks.append((time.monotonic(), ran_s))
        (since, before_s), (now, _) = self._looks[0], self._looks[-1]
        if now <= since or count <= 0:
            return 1.0
        return 1 - max(0.0, (ran_s - before_s) / (now - since) - computing) / count


def tell_at_work(
    turns: TurnGiver | None, at_work: Callable[[float], float], *, asynchronous: bool, as_taken: bool = False
) -> None:  # fmt: skip
    """Tells turns that are ahead what of ``TurnGiver.at_work`` there is; called with each block.

    ``at_work`` gives it, and is given how many threads train at most, on average: none while the loop waits, as many as
    there are cores else, and one where an ``asynchronous`` device computes. ``as_taken``: see
    ``TurnGiver.begins_as_taken``.
    """
    if turns is not None and are_ahead(turns):
        threads = 1 if asynchronous else 1 + len(os.sched_getaffinity(0))
        turns.at_work, turns.begins_as_taken = at_work((1 - turns.wait_share) * threads), as_taken


def _ran_s(process: str) -> float:
    """Seconds that its threads, by now, have had a core or waited for one. Raises ``OSError``."""
    ran_ns = 0
    for task in os.scandir(f"{process}/task"):
        with suppress(OSError, ValueError):  # it has just ended
            had_ns, waited_ns, *_ = Path(task.path, "schedstat").read_text(encoding="ascii").split()
            ran_ns += int(had_ns) + int(waited_ns)
    return ran_ns / 1e9
