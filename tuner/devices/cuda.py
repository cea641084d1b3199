"""NVIDIA's cards, as NVML and CUDA_VISIBLE_DEVICES show them, numbered by PCI bus.

CUDA numbers cards by speed unless CUDA_DEVICE_ORDER says PCI_BUS_ID: where a machine has cards of several kinds, a
number in CUDA_VISIBLE_DEVICES is read here as under that order, and a trial is shown its card under it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.devices.base import DeviceKind, DeviceReader, NoReader
from tuner.devices.cuda_reader import CardReader
from tuner.devices.frameworks import TORCH, Framework, Lack, lack_for_cuda
from tuner.devices.host import read_text
from tuner.devices.nvml import card_number, joules, nvml_handle, nvml_session, slices, text_of, used_bytes
from tuner.model import Device

_VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
BUS = Path("/sys/bus/pci/devices")
DRIVER = "sudo ubuntu-drivers install  # on Ubuntu; for a container: docker run --gpus all"
_VENDOR, _DISPLAY = "0x10de", "0x03"
"""NVIDIA's, and the beginning of the PCI class of what draws or computes: its cards have sound as well."""


class CudaKind(DeviceKind):
    """CUDA cards, each a device of its own; of a card that is divided (MIG), each instance."""

    name = "cuda"
    numbered = True
    own_memory = True
    takes_turns = True

    def find(self) -> list[Device]:
        """The visible cards, numbered as the frameworks number them: within CUDA_VISIBLE_DEVICES."""
        with nvml_session() as nvml:
            if nvml is None:
                return []
            cards: list[Device] = []
            for handle in _visible_handles(nvml):
                try:
                    memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
                    name, uuid = text_of(nvml.nvmlDeviceGetName(handle)), text_of(nvml.nvmlDeviceGetUUID(handle))
                except nvml.NVMLError:
                    continue  # a card that has fallen off the bus
                number = len(cards)
                cards.append(Device(self.name, number, name, uuid, memory, f"{self.name}:{number}"))
            return cards

    def why_absent(self) -> Lack | None:
        """Names CUDA_VISIBLE_DEVICES where it is set, or the lack of a driver, or of a card."""
        if os.environ.get(_VISIBLE) is not None:
            return Lack(f"{_VISIBLE} is {os.environ[_VISIBLE]!r}", f"unset {_VISIBLE}")
        with nvml_session() as nvml:
            if nvml is not None:
                return None
        if not any(_is_card(vendor.parent) for vendor in BUS.glob("*/vendor")):
            return Lack("no NVIDIA card is on the PCI bus, and NVML finds no driver")
        return Lack("an NVIDIA card is on the PCI bus, and NVML finds no driver", DRIVER)

    def lack(self, framework: Framework) -> Lack | None:
        """A build for CUDA, or its libraries."""
        return lack_for_cuda(framework)

    def software(self) -> Mapping[str, str]:
        """The driver's version."""
        with nvml_session() as nvml:
            return {} if nvml is None else {"driver": text_of(nvml.nvmlSystemGetDriverVersion())}

    def environment(self, device: Device, *, alone: bool) -> Mapping[str, str]:
        """Shows this card alone. A rank of several chooses among all cards by its own number.

        By its number where it has one: scripts read the variable, and a UUID is no number. An instance of MIG has none.
        """
        if not alone:
            return {}
        with nvml_session() as nvml:
            number = None if nvml is None or device.uuid.startswith("MIG-") else card_number(nvml, device)
        if number is not None:
            return {_VISIBLE: str(number), _ORDER: "PCI_BUS_ID"}
        return {_VISIBLE: device.uuid if device.uuid.startswith(("GPU-", "MIG-")) else str(device.index)}

    def may_fork(self, framework: str) -> bool:
        """PyTorch meets a card with the first operation on one, and not with its import. The others weren't tried."""
        return framework == TORCH

    def label_in_child(self, device: Device) -> str:
        """The child sees exactly one card, whichever it is: always its first."""
        return f"{self.name}:0"

    def lock_key(self, device: Device) -> str:
        """The card's UUID: its number depends on CUDA_VISIBLE_DEVICES."""
        return f"{self.name}-{device.uuid or device.index}"

    def why_no_energy(self, device: Device) -> str | None:
        """Names what NVML lacks, which counts each card's energy since Volta, and that of no part of a card."""
        if device.uuid.startswith("MIG-"):
            return "the card counts its energy as a whole, and is divided (MIG)"
        with nvml_session() as nvml:
            handle = nvml_handle(nvml, device)
            is_counted = nvml is not None and handle is not None and joules(nvml, handle) is not None
        return "" if is_counted else "NVML doesn't count that of this card"

    def used_bytes(self, device: Device) -> int | None:
        """The card's memory in use; None without a driver, or where the card is gone."""
        with nvml_session() as nvml:
            handle = nvml_handle(nvml, device)
            return None if nvml is None or handle is None else used_bytes(nvml, handle)

    @contextmanager
    def reader(self, device: Device, strangers: frozenset[int] | None = None) -> Iterator[DeviceReader]:
        """Reads clock, heat, what slows the card down and who else is on it; nothing where NVML doesn't know it."""
        with nvml_session() as nvml:
            handle = nvml_handle(nvml, device)
            yield NoReader() if nvml is None or handle is None else CardReader(nvml, handle, strangers)


def _is_card(slot: Path) -> bool:
    """Whether a place on the PCI bus holds one of NVIDIA's cards."""
    return read_text(slot / "vendor").strip() == _VENDOR and read_text(slot / "class").startswith(_DISPLAY)


def _visible_handles(nvml: ModuleType) -> list[Any]:
    visible = os.environ.get(_VISIBLE)
    if visible is None:
        cards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return [handle for card in cards for handle in slices(nvml, card) or [card]]
    handles: list[Any] = []
    for entry in visible.split(","):
        try:
            handle = _visible_handle(nvml, entry.strip())
        except (nvml.NVMLError, ValueError):
            break  # CUDA too ignores everything from the first invalid entry on
        handles += slices(nvml, handle) or [handle]
    return handles


def _visible_handle(nvml: ModuleType, entry: str) -> Any:
    if not entry.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByIndex(int(entry))
    try:
        return nvml.nvmlDeviceGetHandleByUUID(entry)
    except nvml.NVMLError:
        # CUDA accepts any unambiguous beginning of a UUID.
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if text_of(nvml.nvmlDeviceGetUUID(handle)).startswith(entry):
                return handle
        raise
