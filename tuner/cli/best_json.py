"""A best.json that the command line names: the file itself, or the folder of its study."""

from __future__ import annotations

from pathlib import Path

from tuner.errors import ProfileError
from tuner.export import PROFILE


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
