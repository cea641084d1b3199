"""What this machine has: devices, memory, cores, software. The only importer of NVML."""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.errors import DeviceError
from tuner.model import Device

_PACKAGES = (
    "torch", "torchvision", "torch_xla", "triton", "tensorflow", "keras", "jax", "lightning",
    "pytorch-lightning", "transformers", "accelerate", "timm", "numpy", "optuna",
)  # fmt: skip
_DISTRIBUTION = "autotune-study"
# What a driver keeps of a process for a moment, or another process may take: not worth waiting for.
_CLEAN_SLACK_BYTES = 64 * 2**20


def devices() -> list[Device]:
    """Every device that a study could run on here: CUDA cards, a TPU, and the CPU last."""
    found = _cuda_devices()
    tpu = _tpu_device()
    return [*found, *([tpu] if tpu else []), cpu_device()]


def resolve_device(text: str) -> Device:
    """The device that ``auto``, ``cpu``, ``cuda``, ``cuda:1`` or ``tpu`` names. Raises ``DeviceError``."""
    present = devices()
    labels = ", ".join(device.label for device in present)
    if text == "auto":
        return present[0]
    kind, colon, index = text.partition(":")
    known = kind in ("cpu", "cuda", "tpu")
    if not known or (colon and not (kind == "cuda" and index.isascii() and index.isdigit())):
        raise DeviceError(f"unknown device {text!r}", hint=f"auto, cpu, cuda, cuda:1 or tpu; here: {labels}")
    for device in present:
        if device.kind == kind and (not colon or device.index == int(index)):
            return device
    why = _why_no_cuda() if kind == "cuda" else ""
    raise DeviceError(f"there is no {text} on this machine", hint=f"{why}devices here: {labels}")


def cpu_device() -> Device:
    """The machine's processor, with the memory that this process may use."""
    name = _cpu_name()
    return Device("cpu", 0, name, name, host_memory()[0])


def usable_cores() -> int:
    """Cores that this process may use: its affinity, cut by a container's CPU quota; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, math.ceil(_cpu_quota())) if math.isfinite(_cpu_quota()) else cores)


def spare_cores() -> int:
    """Cores of this process's affinity that a container's CPU quota keeps from it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, cores - usable_cores())


def host_memory() -> tuple[int, int]:
    """Total and available bytes, of the container where that is smaller than the machine."""
    values: dict[str, int] = {}
    for line in _read(Path("/proc/meminfo")).splitlines():
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


def software() -> dict[str, str]:
    """Versions of everything that a rate may depend on, without importing any of it."""
    versions = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "kernel": platform.release(),
        "autotune": _version(_DISTRIBUTION),
        **{name: _version(name) for name in _PACKAGES},
    }
    with nvml_session() as nvml:
        if nvml is not None:
            versions["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
    return {name: version for name, version in versions.items() if version}


def device_used_bytes(device: Device) -> int | None:
    """Memory in use on a CUDA device by whomever, None where that can't be told."""
    if device.kind != "cuda":
        return None
    with nvml_session() as nvml:
        handle = nvml_handle(nvml, device)
        return None if nvml is None or handle is None else int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def wait_until_clean(device: Device, used_before: int | None, timeout_s: float = 10.0) -> bool:
    """Waits until a CUDA device's memory is back to ``used_before`` bytes; False when it isn't in time.

    Compared by amount and not by process: inside a container NVML's pids are the host's.
    """
    if device.kind != "cuda" or used_before is None:
        return True
    deadline = time.monotonic() + timeout_s
    while True:
        used = device_used_bytes(device)
        if used is None or used <= used_before + _CLEAN_SLACK_BYTES:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)


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


def _cuda_devices() -> list[Device]:
    """The visible CUDA devices, numbered as the frameworks number them: within CUDA_VISIBLE_DEVICES."""
    with nvml_session() as nvml:
        if nvml is None:
            return []
        found: list[Device] = []
        for handle in _visible_handles(nvml):
            try:
                memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
                name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
            except nvml.NVMLError:
                continue  # a card that has fallen off the bus
            found.append(Device("cuda", len(found), name, uuid, memory))
        return found


def _visible_handles(nvml: ModuleType) -> list[Any]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    handles: list[Any] = []
    for entry in visible.split(","):
        try:
            handles.append(_visible_handle(nvml, entry.strip()))
        except (nvml.NVMLError, ValueError):
            break  # CUDA too ignores everything from the first invalid entry on
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
            if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(entry):
                return handle
        raise


def _why_no_cuda() -> str:
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        return f"CUDA_VISIBLE_DEVICES is {os.environ['CUDA_VISIBLE_DEVICES']!r}; "
    with nvml_session() as nvml:
        return "NVML finds no driver; " if nvml is None else ""


def _tpu_device() -> Device | None:
    """A TPU, when its device files are there and a library that can use them is installed."""
    accelerators = sorted(Path("/dev").glob("accel[0-9]*"))
    vfio = list(Path("/dev/vfio").glob("[0-9]*")) if Path("/dev/vfio").is_dir() else []
    if not (accelerators or vfio) or importlib.util.find_spec("torch_xla") is None:
        return None
    # Only the runtime knows the chip's name and memory, and asking it would occupy the chip.
    name = os.environ.get("TPU_ACCELERATOR_TYPE", "TPU")
    return Device("tpu", 0, name, name, 0)


def _cpu_name() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "Hardware") and value.strip():
            return " ".join(value.split())
    return platform.processor() or platform.machine() or sys.platform


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """The folders whose limits bind this process: its own cgroup's and every one above, version 2 and 1."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
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
        for limit_name, use_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _read(folder / limit_name).strip()
            # Version 1 says "no limit" by a number close to 2**63.
            if limit.isdigit() and int(limit) < 2**60:
                used = _read(folder / use_name).strip()
                cache = _field(_read(folder / "memory.stat"), cache_name)
                yield int(limit), max(0, int(used) - cache) if used.isdigit() else 0


def _cpu_quota() -> float:
    """Cores that the tightest cgroup grants, infinite without a quota."""
    quota = math.inf
    for folder in _cgroup_folders("cpu"):
        fields = _read(folder / "cpu.max").split() or [
            _read(folder / "cpu.cfs_quota_us").strip(),
            _read(folder / "cpu.cfs_period_us").strip(),
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


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
