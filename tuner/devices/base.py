"""What a kind of device is to the parent: how it is found, shown to a child, read beside a trial, kept to one study.

A new kind is a file with a subclass of ``DeviceKind``, and an entry in ``present.KINDS``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tuner.analysis.resources import CardReading
from tuner.devices.frameworks import NAMES, Framework, Lack
from tuner.model import Device

CLEAN_SLACK_BYTES = 64 * 2**20
"""What a driver keeps of a process for a moment, or another process may take: not worth waiting for."""
HOST_SHARE = 0.9
"""Of the host's memory that a trial may take at most."""
FOREIGN_SHARE = 0.1
"""Of the host's cores that others may use beside a measurement, where the host computes. One busy core beside two
threads made one thread look four times faster than two."""
FOREIGN_SHARE_BESIDE_A_DEVICE = 0.5
"""Where the host only feeds an accelerator: it takes more to be felt there."""


class DeviceReader(Protocol):
    """Reads a device beside a trial. ``strangers``: pids that were on it before any trial was."""

    strangers: frozenset[int]

    def read(self, own: Collection[int], siblings: Collection[int] = ()) -> CardReading | None:
        """A reading, None where none is due. ``own`` are the pids of the trial's processes; ``siblings`` those of the
        trials that it takes turns with, of which nothing is told.
        """
        ...


class NoReader:
    """The reader of a device that has nothing to read."""

    strangers: frozenset[int] = frozenset()

    def read(self, own: Collection[int], siblings: Collection[int] = ()) -> None:
        """Never a reading."""


class DeviceKind(ABC):
    """One kind of device. What follows from the defaults: one device, fed by the host, whose memory can't be read.

    ``name`` is the kind in ``Device.kind`` and on the command line. ``numbered``: there may be several, and a number
    chooses one, as in ``cuda:1``. ``is_host``: the host itself computes, so its cores and its memory are the device's;
    otherwise the host only feeds it. ``own_memory``: it has memory of its own, which can be limited and measured.
    ``frameworks`` are those that can compute on it where they lack nothing.
    ``takes_turns``: several trials can be alive on it, of which one at a time computes, as was shown on the device
    itself. ``rotates``: configs can be switched in one process there.
    """

    name: str
    numbered: bool = False
    is_host: bool = False
    own_memory: bool = False
    takes_turns: bool = False
    rotates: bool = True
    frameworks: tuple[str, ...] = NAMES

    @abstractmethod
    def find(self) -> list[Device]:
        """The devices of this kind that a study could run on here, in the order of their numbers."""

    def why_absent(self) -> Lack | None:
        """Why there may be none, or none of that number, and what mends it; None where nothing is known."""
        return None

    def lack(self, framework: Framework) -> Lack | None:
        """What a framework, as it is installed, lacks to compute on this kind; None where nothing is known to.

        It is asked for the ``frameworks`` of the kind alone.
        """
        return None

    def software(self) -> Mapping[str, str]:
        """Name → version of what a rate on this kind depends on beside the Python packages, such as its driver."""
        return {}

    def environment(self, device: Device, *, alone: bool) -> Mapping[str, str]:
        """Variables of a child's environment that show it this device and no other.

        Without ``alone`` the child is one of several ranks, each of which chooses its own among all that are visible.
        """
        return {}

    def compile_cache(self, folder: Path) -> Mapping[str, str]:
        """Variables by which compilers for this kind keep their output below the folder, and take none of elsewhere."""
        return {}

    def may_fork(self, framework: str) -> bool:
        """Whether a trial may be forked from a process that has imported the framework, and not used it yet."""
        return self.is_host

    def label_in_child(self, device: Device) -> str:
        """The device's label in a process with ``environment``."""
        return device.label

    def lock_key(self, device: Device) -> str:
        """What tells this physical device from others of the machine."""
        return self.name

    def why_no_energy(self, device: Device) -> str | None:
        """Why the device's own energy isn't counted, for people; "" where it is, None where the host is the device."""
        return None if self.is_host else f"nothing counts the energy of {self.name}"

    def used_bytes(self, device: Device) -> int | None:
        """The device's memory in use, by whomever; None where that can't be told."""
        return None

    def wait_until_clean(self, device: Device, used_before: int | None, timeout_s: float = 10.0) -> bool:
        """Waits until the device's memory in use is back to ``used_before`` bytes; False when it isn't in time.

        Compared by amount and not by process: inside a container a driver's pids may be the host's.
        """
        if used_before is None:
            return True
        deadline = time.monotonic() + timeout_s
        while True:
            used = self.used_bytes(device)
            if used is None or used <= used_before + CLEAN_SLACK_BYTES:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)

    @contextmanager
    def reader(self, device: Device, strangers: frozenset[int] | None = None) -> Iterator[DeviceReader]:
        """A reader of the device, to be opened before the trial starts. ``strangers``: as of the reader of the trial
        that it takes turns with; None where no other is alive.
        """
        yield NoReader()

    def memory_limits(self, limit_bytes: int, host_bytes: int) -> tuple[int, int | None]:
        """Bytes that a trial may take of the host and of the device (None: unbounded).

        ``limit_bytes`` is what the user allows of the device, ``host_bytes`` the host's memory.
        """
        of_host = int(HOST_SHARE * host_bytes)
        return min(limit_bytes, of_host) if self.is_host else of_host, limit_bytes if self.own_memory else None

    @property
    def foreign_share(self) -> float:
        """The share of the host's cores that other processes may use beside a measurement."""
        return FOREIGN_SHARE if self.is_host else FOREIGN_SHARE_BESIDE_A_DEVICE
