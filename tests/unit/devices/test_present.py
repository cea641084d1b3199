"""Devices, cores, memory and software, on the machine at hand and on made-up ones."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.devices import present as environment
from tuner.errors import DeviceError
from tuner.model import Device

CARDS = ["GPU-aaaa1111", "GPU-bbbb2222"]


class NVMLError(Exception):
    """As NVML raises it."""


def by_index(index: int) -> str:
    if not 0 <= index < len(CARDS):
        raise NVMLError
    return CARDS[index]


def by_uuid(uuid: str) -> str:
    if uuid not in CARDS:
        raise NVMLError
    return uuid


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """NVML of a machine with two cards: this one may have none."""
    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(CARDS),
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetName=lambda handle: b"NVIDIA H100",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80 * 2**30, used=3 * 2**30),
        nvmlSystemGetDriverVersion=lambda: "550.54",
    )
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return nvml


@pytest.fixture
def no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_cpu_is_always_there() -> None:
    cpu = environment.devices()[-1]
    assert cpu.kind == "cpu"
    assert cpu.name
    assert cpu.memory_bytes > 2**20
    assert environment.resolve_device("cpu") == cpu


def test_usable_cores_and_memory_are_within_the_machine() -> None:
    assert 1 <= environment.usable_cores() <= (os.cpu_count() or 1)
    total, available = environment.host_memory()
    assert 0 < available <= total


def test_an_affinity_narrows_the_cores() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert environment.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_software_names_versions_and_nothing_that_is_absent() -> None:
    software = environment.software()
    assert re.fullmatch(r"3\.\d+\.\d+\S*", software["python"])
    assert {"platform", "kernel", "optuna"} <= set(software)
    assert all(software.values())


def test_without_a_driver_there_is_no_cuda_and_auto_is_the_cpu(no_cards: None) -> None:
    assert environment.resolve_device("auto").kind == "cpu"
    with pytest.raises(DeviceError) as caught:
        environment.resolve_device("cuda")
    assert "cpu" in caught.value.hint
    assert "driver" in caught.value.hint


def test_cards_are_listed_and_found_by_number(two_cards: SimpleNamespace) -> None:
    assert [d.label for d in environment.devices()] == ["cuda:0", "cuda:1", "cpu"]
    assert environment.resolve_device("auto").uuid == CARDS[0]
    assert environment.resolve_device("cuda").uuid == CARDS[0]
    assert environment.resolve_device("cuda:1") == Device("cuda", 1, "NVIDIA H100", CARDS[1], 80 * 2**30)
    assert environment.software()["driver"] == "550.54"


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("1", [CARDS[1]]),
        ("1,0", [CARDS[1], CARDS[0]]),
        ("GPU-bbbb2222", [CARDS[1]]),
        ("GPU-bbbb", [CARDS[1]]),
        ("", []),
        ("-1", []),
        ("0,7,1", [CARDS[0]]),
    ],
)
def test_cuda_visible_devices_is_respected(
    two_cards: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, visible: str, uuids: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [d.uuid for d in environment.devices() if d.kind == "cuda"] == uuids


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "cuda:²", "", "CUDA 0"])
def test_a_device_that_means_nothing_is_refused_with_what_is_there(two_cards: SimpleNamespace, text: str) -> None:
    with pytest.raises(DeviceError) as caught:
        environment.resolve_device(text)
    assert repr(text) in caught.value.message
    assert "cuda:1" in caught.value.hint


def test_a_card_beyond_the_last_is_refused(two_cards: SimpleNamespace) -> None:
    with pytest.raises(DeviceError, match="cuda:7"):
        environment.resolve_device("cuda:7")


def test_waiting_until_clean_ends_when_memory_is_back_and_when_it_is_not(two_cards: SimpleNamespace) -> None:
    card = environment.resolve_device("cuda:0")
    assert environment.device_used_bytes(card) == 3 * 2**30
    assert environment.wait_until_clean(card, 3 * 2**30)
    assert not environment.wait_until_clean(card, 2**30, timeout_s=0.2)
    assert environment.wait_until_clean(environment.cpu_device(), None)


def cgroup(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    real = environment._read

    def read(path: Path) -> str:
        text = str(path)
        if text == "/proc/self/cgroup" or text.startswith("/sys/fs/cgroup"):
            return files.get(text, "")
        return real(path)

    monkeypatch.setattr(environment, "_read", read)


V2: dict[str, Any] = {
    "/proc/self/cgroup": "0::/pod/box\n",
    "/sys/fs/cgroup/pod/box/memory.max": "max\n",
    "/sys/fs/cgroup/pod/memory.max": "1000000000\n",
    "/sys/fs/cgroup/pod/memory.current": "400000000\n",
    "/sys/fs/cgroup/pod/memory.stat": "anon 300000000\ninactive_file 100000000\n",
    "/sys/fs/cgroup/pod/box/cpu.max": "50000 100000\n",
}
V1: dict[str, Any] = {
    "/proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n",
    "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1000000000\n",
    "/sys/fs/cgroup/memory/box/memory.usage_in_bytes": "400000000\n",
    "/sys/fs/cgroup/memory/box/memory.stat": "total_inactive_file 100000000\n",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
    "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize("files", [V2, V1], ids=["cgroup-v2", "cgroup-v1"])
def test_a_container_narrows_memory_and_cores(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    cgroup(monkeypatch, files)
    assert environment.host_memory() == (1_000_000_000, 700_000_000)
    assert environment.usable_cores() == 1
