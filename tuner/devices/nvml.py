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


def text_of(value: str | bytes) -> str:
    """A text of NVML's: older bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else value
