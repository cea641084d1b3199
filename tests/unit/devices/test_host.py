"""The host's cores and memory, on the machine at hand and in made-up containers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tuner.devices import host


def test_usable_cores_and_memory_are_within_the_machine() -> None:
    assert 1 <= host.usable_cores() <= (os.cpu_count() or 1)
    total, available = host.host_memory()
    assert 0 < available <= total


def test_an_affinity_narrows_the_cores() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert host.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def cgroup(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    real = host.read_text

    def read(path: Path) -> str:
        text = str(path)
        if text == "/proc/self/cgroup" or text.startswith("/sys/fs/cgroup"):
            return files.get(text, "")
        return real(path)

    monkeypatch.setattr(host, "read_text", read)


V2: dict[str, Any] = {
    "/proc/self/cgroup": "0::/pod/box\n",
    "/sys/fs/cgroup/pod/box/memory.max": "max\n",
    "/sys/fs/cgroup/pod/memory.max": "1000000000\n",
    "/sys/fs/cgroup/pod/memory.current": "400000000\n",
    "/sys/fs/cgroup/pod/memory.stat": "anon 300000000\ninactive_file 60000000\nactive_file 40000000\n",
    "/sys/fs/cgroup/pod/box/cpu.max": "50000 100000\n",
}
V1: dict[str, Any] = {
    "/proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n",
    "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1000000000\n",
    "/sys/fs/cgroup/memory/box/memory.usage_in_bytes": "400000000\n",
    "/sys/fs/cgroup/memory/box/memory.stat": "total_inactive_file 60000000\ntotal_active_file 40000000\n",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
    "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize("files", [V2, V1], ids=["cgroup-v2", "cgroup-v1"])
def test_a_container_narrows_memory_and_cores(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    cgroup(monkeypatch, files)
    assert host.host_memory() == (1_000_000_000, 700_000_000)
    assert host.usable_cores() == 1


def test_memory_above_which_a_container_is_held_back_is_none_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above ``memory.high`` the kernel slows a process down until it stands still, and ends none."""
    throttled = {"/sys/fs/cgroup/pod/memory.high": "800000000\n", "/sys/fs/cgroup/pod/box/memory.high": "max\n"}
    cgroup(monkeypatch, V2 | throttled)
    assert host.host_memory() == (800_000_000, 500_000_000)
    cgroup(monkeypatch, V2 | throttled | {"/sys/fs/cgroup/pod/memory.max": "max\n"})
    assert host.host_memory() == (800_000_000, 500_000_000)
