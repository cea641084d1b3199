"""Devices and software, on the machine at hand and on made-up ones."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from tuner.devices.present import devices, kind_of, resolve_device
from tuner.devices.software import software
from tuner.devices.tpu import TpuKind
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
    [cpu] = [device for device in devices() if device.kind == "cpu"]
    assert cpu.name
    assert cpu.memory_bytes > 2**20
    assert resolve_device("cpu") == cpu


def test_software_names_versions_and_nothing_that_is_absent() -> None:
    versions = software()
    assert re.fullmatch(r"3\.\d+\.\d+\S*", versions["python"])
    assert {"platform", "kernel", "optuna"} <= set(versions)
    assert all(versions.values())


def test_without_a_driver_there_is_no_cuda_and_auto_is_the_cpu(no_cards: None) -> None:
    assert resolve_device("auto").kind == "cpu"
    with pytest.raises(DeviceError) as caught:
        resolve_device("cuda")
    assert "cpu" in caught.value.hint
    assert "driver" in caught.value.hint


def test_cards_are_listed_and_found_by_number(two_cards: SimpleNamespace) -> None:
    assert [d.label for d in devices()] == ["cuda:0", "cuda:1", "cpu"]
    assert resolve_device("auto").uuid == CARDS[0]
    assert resolve_device("cuda").uuid == CARDS[0]
    assert resolve_device("cuda:1") == Device("cuda", 1, "NVIDIA H100", CARDS[1], 80 * 2**30, "cuda:1")
    assert software()["driver"] == "550.54"


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
    assert [d.uuid for d in devices() if d.kind == "cuda"] == uuids


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "cuda:²", "", "CUDA 0"])
def test_a_device_that_means_nothing_is_refused_with_what_is_there(two_cards: SimpleNamespace, text: str) -> None:
    with pytest.raises(DeviceError) as caught:
        resolve_device(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint == "auto, cpu, cuda, cuda:1, tpu or xla; here: cuda:0, cuda:1, cpu"


def test_a_card_beyond_the_last_is_refused(two_cards: SimpleNamespace) -> None:
    with pytest.raises(DeviceError, match="cuda:7"):
        resolve_device("cuda:7")


def test_waiting_until_clean_ends_when_memory_is_back_and_when_it_is_not(two_cards: SimpleNamespace) -> None:
    card = resolve_device("cuda:0")
    kind = kind_of(card)
    assert kind.used_bytes(card) == 3 * 2**30
    assert kind.wait_until_clean(card, 3 * 2**30)
    assert not kind.wait_until_clean(card, 2**30, timeout_s=0.2)
    cpu = resolve_device("cpu")
    assert kind_of(cpu).used_bytes(cpu) is None
    assert kind_of(cpu).wait_until_clean(cpu, None)


def test_a_kind_that_only_a_later_version_knows_is_refused() -> None:
    with pytest.raises(DeviceError, match="abacus"):
        kind_of(Device("abacus", 0, "an abacus", "", 0))


@pytest.mark.parametrize(
    ("text", "limits"),
    [("cpu", (600, None)), ("cuda", (900, 600))],
)
def test_a_limit_is_of_the_memory_that_the_device_computes_in(
    two_cards: SimpleNamespace, text: str, limits: tuple[int, int | None]
) -> None:
    assert kind_of(resolve_device(text)).memory_limits(600, 1000) == limits


def test_a_host_that_computes_keeps_some_of_its_memory(no_cards: None) -> None:
    assert kind_of(resolve_device("cpu")).memory_limits(1000, 1000) == (900, None)
    assert TpuKind().memory_limits(600, 1000) == (900, None)


def test_memory_in_use_leaves_out_what_the_driver_reserves(two_cards: SimpleNamespace) -> None:
    """Two versions of one query: the first counts the driver's own 600 MiB as used."""

    def memory(handle: str, version: int = 1) -> SimpleNamespace:
        return SimpleNamespace(total=80 * 2**30, used=3 * 2**30 + (600 * 2**20 if version == 1 else 0))

    card = resolve_device("cuda:0")
    two_cards.nvmlDeviceGetMemoryInfo = memory
    assert kind_of(card).used_bytes(card) == 3 * 2**30 + 600 * 2**20
    two_cards.nvmlMemory_v2 = 2
    assert kind_of(card).used_bytes(card) == 3 * 2**30


def test_a_trial_is_shown_its_card_by_number_whatever_the_order(
    two_cards: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts read CUDA_VISIBLE_DEVICES as a number; it counts among all cards, not among those that are visible."""
    two_cards.nvmlDeviceGetIndex = CARDS.index
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    card = resolve_device("cuda:0")
    assert card.uuid == CARDS[1]
    shown = kind_of(card).environment(card, alone=True)
    assert shown == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert kind_of(card).environment(card, alone=False) == {}
    del two_cards.nvmlDeviceGetIndex
    assert kind_of(card).environment(card, alone=True) == {"CUDA_VISIBLE_DEVICES": CARDS[1]}


def test_a_divided_card_is_its_instances_with_their_own_memory(
    two_cards: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = {0: "MIG-1", 2: "MIG-2"}  # the numbers have a gap

    def instance(handle: str, number: int) -> str:
        if number not in instances:
            raise NVMLError
        return instances[number]

    two_cards.NVML_DEVICE_MIG_ENABLE = 1
    two_cards.nvmlDeviceGetMigMode = lambda handle: [int(handle == CARDS[1])] * 2
    two_cards.nvmlDeviceGetMaxMigDeviceCount = lambda handle: 7
    two_cards.nvmlDeviceGetMigDeviceHandleByIndex = instance
    two_cards.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(
        total=(10 if handle.startswith("MIG") else 80) * 2**30, used=2**30
    )
    cards = [device for device in devices() if device.kind == "cuda"]
    assert [(card.label, card.uuid, card.memory_bytes // 2**30) for card in cards] == [
        ("cuda:0", CARDS[0], 80), ("cuda:1", "MIG-1", 10), ("cuda:2", "MIG-2", 10),
    ]  # fmt: skip
    assert kind_of(cards[1]).environment(cards[1], alone=True) == {"CUDA_VISIBLE_DEVICES": "MIG-1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [device.uuid for device in devices() if device.kind == "cuda"] == ["MIG-1", "MIG-2"]
