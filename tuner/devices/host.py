"""The host's cores and memory, as far as this process may use them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores() -> int:
    """Cores that this process may use: its affinity, cut by a container's CPU quota; at least 1."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, math.ceil(_cpu_quota())) if math.isfinite(_cpu_quota()) else cores)


def spare_cores() -> int:
    """Cores of this process's affinity that a container's CPU quota keeps from it."""
    return max(0, len(os.sched_getaffinity(0)) - usable_cores())


def host_memory() -> tuple[int, int]:
    """Total and available bytes, of the container where that is smaller than the machine."""
    values: dict[str, int] = {}
    for line in read_text(Path("/proc/meminfo")).splitlines():
        name, _, rest = line.partition(":")
        if rest.strip():
            values[name] = int(rest.split()[0]) * 1024
    total = values.get("MemTotal", 0)
    available = values.get("MemAvailable", total)
    for limit, used in _memory_limits():
        if not total or limit < total:
            total = limit
        available = min(available, max(0, limit - used))
    return total, available


def shared_memory() -> int:
    """Bytes of shared memory in use on the machine, files in it included; 0 where that isn't told."""
    for line in read_text(Path("/proc/meminfo")).splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    return 0


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """The folders whose limits bind this process: its own cgroup's and every one above, version 2 and 1."""
    for line in read_text(Path("/proc/self/cgroup")).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers == "":
            root = Path("/sys/fs/cgroup")
        elif controller in controllers.split(","):
            root = Path("/sys/fs/cgroup") / controllers
        else:
            continue
        # In a container the path may be the host's while the mount shows only the container's part.
        folder = Path(os.path.normpath(f"{root}/{name.lstrip('/')}"))
        while folder.is_relative_to(root):
            yield folder
            folder = folder.parent


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Limit and use of every cgroup above this process that has a limit."""
    for folder in _cgroup_folders("memory"):
        for limit_name, use_name, cache_names in (
            ("memory.max", "memory.current", ("inactive_file", "active_file")),
            # What goes above that isn't ended, but held back until it stands still.
            ("memory.high", "memory.current", ("inactive_file", "active_file")),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
        ):
            limit = read_text(folder / limit_name).strip()
            # Version 1 says "no limit" by a number close to 2**63.
            if limit.isdigit() and int(limit) < 2**60:
                used = read_text(folder / use_name).strip()
                # What was read twice is no less given up than what was read once: the machine's own figure has both.
                cache = sum(_field(read_text(folder / "memory.stat"), name) for name in cache_names)
                yield int(limit), max(0, int(used) - cache) if used.isdigit() else 0


def _cpu_quota() -> float:
    """Cores that the tightest cgroup grants, infinite without a quota."""
    quota = math.inf
    for folder in _cgroup_folders("cpu"):
        fields = read_text(folder / "cpu.max").split() or [
            read_text(folder / "cpu.cfs_quota_us").strip(),
            read_text(folder / "cpu.cfs_period_us").strip(),
        ]
        if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]):
            quota = min(quota, int(fields[0]) / int(fields[1]))
    return quota


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name:
            return int(words[1])
    return 0


def read_text(path: Path) -> str:
    """The file's text; "" where it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
