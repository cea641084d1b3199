"""A best.json that the command line names: the file itself, or the folder of its study."""

from __future__ import annotations

from pathlib import Path

from tuner.devices.present import kind_of
from tuner.errors import DeviceError, ProfileError
from tuner.export import PROFILE
from tuner.formatting import count_text
from tuner.model import Device


def file_of(path: str) -> str:
    """The file, also for the study's folder."""
    return str(Path(path) / PROFILE.file_name) if Path(path).is_dir() else path


def content_of(path: str) -> bytes:
    """What the file holds. Raises ``ProfileError`` where it can't be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ProfileError(
            f"can't read {path}: {error.strerror}", hint="autotune study writes best.json into the study's folder"
        ) from error


def shown_name(device: Device, cores: int | None) -> str:
    """The name that a profile's device is shown by: a processor's with the cores that trials might use."""
    try:
        is_host = kind_of(device).is_host
    except DeviceError:  # of a later version's kind
        is_host = False
    return f"{device.name}, {count_text(cores, 'core')}" if is_host and cores else device.name
