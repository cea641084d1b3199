"""The worker processes of a DataLoader: stopped and continued with what they started, and what memory they take."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any


def workers_of(iterator: object) -> list[Any]:
    """Its processes; none where it makes its batches itself."""
    return list(getattr(iterator, "_workers", None) or [])


def signal_workers(iterator: object, number: signal.Signals) -> None:
    """To all workers that live, and what they started."""
    for worker in workers_of(iterator):
        if not worker.is_alive():
            continue  # its number may be another process's by now
        for pid in (worker.pid, *_children(worker.pid)):
            with suppress(OSError):
                os.kill(pid, number)


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
