"""NVIDIA's management library: a session with it, and its handle of a card. The only importer of pynvml."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tuner.model import Device


@contextmanager
def nvml_session() -> Iterator[ModuleType | None]:
    """NVML while it is needed, None on a machine without an NVIDIA driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # NVMLError is built from the library; without one there is nothing to tell apart
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def nvml_handle(nvml: ModuleType | None, device: Device) -> Any:
    """NVML's handle of a CUDA device; None where the card is gone."""
    if nvml is None:
        return None
    try:
        if device.uuid:
            return nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        return nvml.nvmlDeviceGetHandleByIndex(device.index)
    except nvml.NVMLError:
        return None


def card_number(nvml: ModuleType, device: Device) -> int | None:
    """The card's number on this machine by PCI bus, whatever CUDA_VISIBLE_DEVICES shows; None where NVML can't tell."""
    handle = nvml_handle(nvml, device)
    try:
        return None if handle is None else int(nvml.nvmlDeviceGetIndex(handle))
    except (nvml.NVMLError, AttributeError):
        return None


def text_of(value: str | bytes) -> str:
    """A text of NVML's: older bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else value


def used_bytes(nvml: ModuleType, handle: Any) -> int:
    """Bytes of a card that processes hold.

    The first version of the query counts what the driver reserves for itself, too, which CUDA's own figure leaves out.
    """
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
    except (nvml.NVMLError, AttributeError, TypeError):  # a driver or a binding that knows the first version only
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def joules(nvml: ModuleType, handle: Any) -> float | None:
    """What a card has taken since its driver was loaded; None where the card, the driver or the binding can't tell."""
    try:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
    except (nvml.NVMLError, AttributeError):
        return None


def slices(nvml: ModuleType, handle: Any) -> list[Any]:
    """Handles of the instances that a card is divided into (MIG); none where it is whole."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        numbers = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except (nvml.NVMLError, AttributeError):  # a card or a driver without MIG
        return []
    found: list[Any] = []
    for number in numbers:
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
        except nvml.NVMLError:
            continue  # numbers may have gaps
    return found
