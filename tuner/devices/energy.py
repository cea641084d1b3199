"""The host's energy, as the processor counts it (RAPL): of its packages and their memory, whoever used them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.devices.host import read_text, usable_cores

POWERCAP = Path("/sys/class/powercap")
READABLE = "sudo chmod -R a+r /sys/class/powercap/intel-rapl*"
"""Until the next start of the machine."""
_MICRO = 1e-6


@dataclass(frozen=True)
class _Zone:
    """A counter of microjoules that begins again at 0 behind ``most``; of main memory (``is_memory``), or a package."""

    file: Path
    most: int
    is_memory: bool


class HostMeter:
    """Joules since it was made. Read it at least once while the counters go round, which takes them minutes or more.

    ``memory_joules`` are the part of them, at the last reading, that main memory took: 0 where nothing counts that.

    ``root`` is where the kernel shows them. Packages count their cores and what else is on them; main memory has zones
    of its own within these, which packages of servers leave out. The whole machine's (``psys``) would count both again.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones = _zones(root)
        self._last = _counted(self._zones)
        self._joules = self.memory_joules = 0.0

    def read(self) -> float | None:
        """None as soon as any of the counters can't be read: a part of the energy would pass for all of it."""
        before, self._last = self._last, _counted(self._zones)
        if before is None or self._last is None:
            self._last = None
            return None
        for zone, then, now in zip(self._zones, before, self._last, strict=True):
            if now < then and not zone.most:
                self._last = None
                return None
            # Behind its end a counter goes on at 0.
            more = _MICRO * (now - then if now >= then else now - then + zone.most + 1)
            self._joules += more
            self.memory_joules += more * zone.is_memory
        return self._joules


def why_no_host_energy(root: Path = POWERCAP, cores: tuple[int, int] | None = None) -> str:
    """Why nothing is known of the host's energy, for people, with what mends it; "" where it is counted.

    ``cores`` are those that may be used here, and those of the machine.
    """
    usable, all_cores = cores if cores is not None else (usable_cores(), os.cpu_count() or 1)
    zones = _zones(root)
    if not zones:
        return "this machine shows no counters of its energy (RAPL), as most virtual machines"
    if _counted(zones) is None:
        return f"its counters of energy (RAPL) are for root alone; this lets everyone read them: {READABLE}"
    if usable < all_cores:
        return f"the processor's counters are those of all {all_cores} cores, and {usable} may be used here"
    return ""


def host_meter(root: Path = POWERCAP, cores: tuple[int, int] | None = None) -> HostMeter | None:
    """A meter of the host's energy; None where what it counts isn't that of what runs here."""
    return None if why_no_host_energy(root, cores) else HostMeter(root)


def _zones(root: Path) -> tuple[_Zone, ...]:
    """The zones that count everything once. Others of the same names (``intel-rapl-mmio``) are the same counters."""
    packages = [zone for zone in sorted(root.glob("intel-rapl:*")) if _named(zone, "package-")]
    memories = [part for zone in packages for part in sorted(zone.glob(f"{zone.name}:*")) if _named(part, "dram")]
    found = []
    for folder in (*packages, *memories):
        most = read_text(folder / "max_energy_range_uj").strip()
        found.append(_Zone(folder / "energy_uj", int(most) if most.isdigit() else 0, folder in memories))
    return tuple(found)


def _named(zone: Path, beginning: str) -> bool:
    return read_text(zone / "name").strip().startswith(beginning)


def _counted(zones: Sequence[_Zone]) -> tuple[int, ...] | None:
    """Microjoules of each; None where there are none, or one of them can't be read."""
    texts = [read_text(zone.file).strip() for zone in zones]
    return tuple(map(int, texts)) if texts and all(text.isdigit() for text in texts) else None
