"""The worker processes of a DataLoader: stopped and continued with what they started, their memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


def workers_of(iterator: object) -> list[Any]:
    """Its processes; none where it makes its batches itself."""
    return list(getattr(iterator, "_workers", None) or [])


Lock = tuple[int, str]
"""A process, and the file that it has locked for writing, as the kernel names it."""
LOCK_PATIENCE_S = 0.25
"""So long a worker goes on that has a file locked: whoever has it locked for longer has it for as long as it lives."""
_STOP_PATIENCE_S = 0.02


def stop_workers(iterator: object, lasting: set[Lock]) -> None:
    """Stops them and what they started, but none while it has a file locked for a moment: others may wait for that.

    ``lasting``: the locks that workers keep, to which those are added that are found to be such.
    """
    moving, deadline = _pids_of(iterator), time.monotonic() + LOCK_PATIENCE_S
    while moving:
        _signal(moving, signal.SIGSTOP)
        _wait_until_still(moving)
        held = {lock for lock in _locks() if lock[0] in moving} - lasting
        if time.monotonic() >= deadline:
            lasting |= held
            return
        moving = [pid for pid in moving if any(pid == holder for holder, _ in held)]
        _signal(moving, signal.SIGCONT)
        time.sleep(0.001 if moving else 0.0)


def continue_workers(iterator: object) -> None:
    """Lets them go on, and what they started."""
    _signal(_pids_of(iterator), signal.SIGCONT)


def kill_workers(iterator: object) -> None:
    """Ends them at once, and what they started."""
    _signal(_pids_of(iterator), signal.SIGKILL)


def _pids_of(iterator: object) -> list[int]:
    """Of all workers that live, and of what they started; the number of another may be a stranger's by now."""
    alive = [worker.pid for worker in workers_of(iterator) if worker.is_alive()]
    return [pid for worker in alive for pid in (worker, *_children(worker))]


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def _wait_until_still(pids: Sequence[int]) -> None:
    """Until all of them are stopped or gone, for a moment: one that waits for a disk stops once it has an answer."""
    deadline = time.monotonic() + _STOP_PATIENCE_S
    while any((read_text(f"/proc/{pid}/stat").rpartition(")")[2].split() or "X")[0] not in "TtZX" for pid in pids):
        if time.monotonic() >= deadline:
            return
        time.sleep(0.0005)


def _locks() -> Iterator[Lock]:
    """Those for writing that anybody has; none where the kernel doesn't tell. Who waits for one is marked by ``->``."""
    for row in read_text("/proc/locks").splitlines():
        fields = row.split()
        if len(fields) > 5 and fields[1] in ("FLOCK", "POSIX") and fields[3] == "WRITE":
            yield int(fields[4]), fields[5]


def _children(pid: int) -> list[int]:
    """The processes that a worker has started by its first thread; none where the kernel doesn't tell."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(text) for text in file.read().split()]
    except (OSError, ValueError):
        return []


def machine_memory() -> tuple[int, int]:
    """Bytes that are available on the machine, and that it has, or those of the container where it has fewer; so many
    that all fits where nothing tells.
    """
    told: dict[str, int] = {}
    with suppress(ValueError, IndexError):
        told = {row.split(":")[0]: int(row.split()[1]) * 1024 for row in read_text("/proc/meminfo").splitlines()}
    available, whole = told.get("MemAvailable", 1 << 62), told.get("MemTotal", 0)
    for limit, used in _limits():
        available, whole = min(available, max(0, limit - used)), min(whole or limit, limit)
    return available, whole


def _limits() -> Iterator[tuple[int, int]]:
    """Limit and use of every control group that this process is in, of version 2 and 1. What files have in memory can
    be given up: it counts as free, as in the machine's own figure.
    """
    for row in read_text("/proc/self/cgroup").splitlines():
        controllers, _, name = row.partition(":")[2].partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup", controllers)
        # In a container the name may be the host's: what is above it is looked at in any case.
        folder = Path(os.path.normpath(f"{root}/{name.lstrip('/')}"))
        names, prefix = ("memory.max", "memory.current"), ""
        if controllers:
            names, prefix = ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"
        while folder.is_relative_to(root):
            limit, used = (read_text(f"{folder}/{each}").strip() for each in names)
            if limit.isdigit() and used.isdigit() and int(limit) < 1 << 60:  # version 1 has no limit near 2**63
                rows = [row.split() for row in read_text(f"{folder}/memory.stat").splitlines()]
                cache = sum(int(row[1]) for row in rows if row[0] in (f"{prefix}inactive_file", f"{prefix}active_file"))
                yield int(limit), max(0, int(used) - cache)
            folder = folder.parent


def read_text(path: str) -> str:
    """The file's text; "" where it can't be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def shared_memory() -> int:
    """Bytes that are left where workers put their batches; so many that all fits where nothing tells."""
    with suppress(OSError):
        found = os.statvfs("/dev/shm")
        return found.f_bavail * found.f_frsize
    return 1 << 62


def private_bytes(pid: int) -> int:
    """What a process has in memory by itself."""
    total = 0
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        total = sum(int(row.split()[1]) * 1024 for row in file if row.startswith("Private_"))
    return total
