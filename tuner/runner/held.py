"""What goes by while a trial is held; and its end as soon as its guard is killed, whatever the study is at meanwhile.

The guard would have ended what is stopped when the study died. Without one it stays stopped for good, should the study
be killed before the trial's next turn.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tuner.devices.energy import HostMeter
from tuner.runner.tree import cpu_times


@dataclass
class Held:
    """What went by while the trial was held: seconds, the cores' busy and stolen ones, the host's joules, and the part
    of these that main memory took.

    ``meter`` is None where the host's energy isn't known.
    """

    meter: HostMeter | None
    seconds: float = 0.0
    busy_s: float = 0.0
    steal_s: float = 0.0
    joules: float = 0.0
    memory_joules: float = 0.0
    since: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0)

    def begin(self) -> None:
        self.since = self._now()

    def end(self) -> None:
        passed = (now - then for now, then in zip(self._now(), self.since, strict=True))
        seconds, busy_s, steal_s, joules, memory_joules = passed
        self.seconds += seconds
        self.busy_s += busy_s
        self.steal_s += steal_s
        self.joules += joules
        self.memory_joules += memory_joules

    def counted(self) -> tuple[float, float] | tuple[None, None]:
        """The host's joules since the meter was made, and main memory's, without those; None where they aren't read."""
        joules = self.meter.read() if self.meter is not None else None
        if self.meter is None or joules is None:
            return None, None
        return round(joules - self.joules, 3), round(self.meter.memory_joules - self.memory_joules, 3)

    def _now(self) -> tuple[float, ...]:
        joules = self.meter.read() if self.meter is not None else None
        memory_joules = self.meter.memory_joules if self.meter is not None else 0.0
        return time.monotonic(), *cpu_times(os.sched_getaffinity(0)), joules or 0.0, memory_joules


class HeldTrial:
    """Waits in a thread of its own, once the trial is held for the first time. ``end`` ends the trial, and is called
    while it is held only: who made this has it for itself at other times.
    """

    def __init__(self, guard: int, end: Callable[[], None]) -> None:
        self._guard = guard
        self._end = end
        self._ours = threading.Lock()
        self._ours.acquire()
        self._is_held = False
        self._closed, self._close = os.pipe()
        self._thread: threading.Thread | None = None

    def hold(self) -> None:
        """It is held from here on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, name="held trial", daemon=True)
            self._thread.start()
        self._is_held = True
        self._ours.release()

    def release(self) -> None:
        """It isn't held any more, if it was; waits until it is ended where that has begun."""
        if self._is_held:
            self._ours.acquire()
            self._is_held = False

    def close(self) -> None:
        """Ends the thread."""
        self.release()
        os.close(self._close)
        if self._thread is not None:
            self._thread.join()
        os.close(self._closed)

    def _wait(self) -> None:
        closed = select.poll()
        closed.register(self._closed, select.POLLIN)
        try:
            guard = os.pidfd_open(self._guard)
        except OSError:
            pass  # it has ended
        else:
            ended = select.poll()
            ended.register(self._closed, select.POLLIN)
            ended.register(guard, select.POLLIN)
            ended.poll()
            os.close(guard)
        while not closed.poll(0):
            if self._ours.acquire(timeout=0.1):
                try:
                    self._end()
                finally:
                    self._ours.release()
                return
