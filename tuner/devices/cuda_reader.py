"""Reads a CUDA card beside a trial about once a second: clock, heat, energy, what slows it down, who else is on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from types import ModuleType
from typing import Any

from tuner.analysis.resources import CardReading
from tuner.devices.nvml import joules, used_bytes

PERIOD_S = 1.0
# As for every reading beside what is measured: at most 1% of the time.
_OBSERVER_SHARE = 0.01


class CardReader:
    """Raw readings for the trial's resource samples. Processes that are on the card already are others', unless it is
    told who was there before (``strangers``).
    """

    def __init__(
        self, nvml: ModuleType, handle: Any, strangers: frozenset[int] | None = None, *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._nvml = nvml
        self._handle = handle
        self._clock = clock
        self._next = 0.0
        # Microseconds since 1970, as NVML stamps its samples.
        self._seen_us = int(time.time() * 1e6)
        self.strangers = frozenset(self._memory()) if strangers is None else strangers

    def read(self, own: Collection[int], siblings: Collection[int] = ()) -> CardReading | None:
        """As ``DeviceReader.read``."""
        started = self._clock()
        if started < self._next:
            return None
        memory, shares = self._memory(), self._shares()
        listed = {*memory, *(shares or ())}.difference(siblings)
        foreign = tell_apart(listed, own, self.strangers)
        clock_mhz = self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)
        celsius = self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
        reading = CardReading(
            sm_mhz=None if clock_mhz is None else float(clock_mhz),
            celsius=None if celsius is None else float(celsius),
            reasons=self._reasons(),
            used=self._used_bytes(),
            tells_shares=shares is not None,
            processes=tuple((pid, memory.get(pid), (shares or {}).get(pid), other) for pid, other in foreign),
            joules=joules(self._nvml, self._handle),
        )
        ended = self._clock()
        self._next = ended + max(PERIOD_S, (ended - started) / _OBSERVER_SHARE)
        return reading

    def _reasons(self) -> Any:
        """The bits of what limits the clocks now. Drivers before 535 know them by their old name."""
        now = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        return now if now is not None else self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")

    def _used_bytes(self) -> int | None:
        try:
            return used_bytes(self._nvml, self._handle)
        except self._nvml.NVMLError:
            return None

    def _memory(self) -> dict[int, int | None]:
        """Bytes of each process that computes on the card."""
        listed = self._ask("nvmlDeviceGetComputeRunningProcesses") or ()
        return {int(process.pid): process.usedGpuMemory for process in listed}

    def _shares(self) -> dict[int, float] | None:
        """Percent of the multiprocessors' time that each process had since the last reading; None where untold."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_us)
        except (self._nvml.NVMLError, AttributeError) as error:
            # "Not found" says that nobody has run anything since.
            return {} if getattr(error, "value", None) == self._nvml.NVML_ERROR_NOT_FOUND else None
        self._seen_us = max([self._seen_us, *(int(sample.timeStamp) for sample in samples)])
        return mean_shares((int(sample.pid), int(sample.smUtil)) for sample in samples)

    def _ask(self, name: str, *arguments: Any) -> Any:
        """What NVML answers, None where this card, driver or binding can't."""
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None


def tell_apart(listed: Iterable[int], own: Collection[int], before: Collection[int]) -> list[tuple[int, bool | None]]:
    """Of each listed process whether it is another's; None where that can't be told.

    In a container NVML's pids may be the host's: a newcomer is a stranger only where the trial's own pids are listed.
    """
    pids = sorted(listed)
    readable = any(pid in own for pid in pids)
    return [(pid, pid not in own if readable or pid in before else None) for pid in pids]


def mean_shares(samples: Iterable[tuple[int, int]]) -> dict[int, float]:
    """The mean of each process's samples; drivers give figures beyond 100 at times, which mean nothing."""
    found: dict[int, list[int]] = {}
    for pid, percent in samples:
        if 0 <= percent <= 100:
            found.setdefault(pid, []).append(percent)
    return {pid: sum(values) / len(values) for pid, values in found.items()}
