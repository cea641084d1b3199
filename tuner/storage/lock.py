"""Locks that die with their owner: one study a device, one process a study's folder.

``flock`` on an open file is released by the kernel however the owner ends. The file is never deleted: a
second owner could hold the deleted one while a third creates it anew.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from tuner.devices.present import kind_of
from tuner.errors import DeviceBusyError, InfrastructureError, StorageError
from tuner.model import Device
from tuner.storage.folder import LOCK


class _FileLock:
    """An exclusive lock on a file which says who holds it."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self._owner = owner
        self._descriptor: int | None = None

    def acquire(self) -> str | None:
        """Takes the lock; None when that worked, else who holds it. Raises ``OSError``.

        Never through a link: the file is emptied, and somebody else might have chosen which one that is.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(descriptor)
            raise OSError(errno.EPERM, "it is a link, or no plain file")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return holder
            raise
        self._descriptor = descriptor
        pid = os.getpid()
        text = json.dumps(
            {
                "pid": pid, "born": born(pid), "host": socket.gethostname(), "since": time.time(),
                "owner": self._owner,
            }
        )  # fmt: skip
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text.encode(), 0)
        except OSError:
            pass  # a full disk: the lock holds all the same, only a refusal can't say who has it
        return None

    def release(self) -> None:
        """Gives the lock back; the text goes first, so that it never names one who has left."""
        if self._descriptor is not None:
            try:
                os.ftruncate(self._descriptor, 0)
            except OSError:
                pass  # as above
            os.close(self._descriptor)
            self._descriptor = None


def born(pid: int) -> str:
    """When the process started, in ticks since boot: a pid is given again. "" where that isn't told."""
    return (_told(pid)[19:20] or [""])[0]


def has_ended(pid: int) -> bool:
    """Whether the process is dead, and nobody has waited for it: its pid can still be sent signals."""
    return _told(pid)[:1] in (["Z"], ["X"])


def _told(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` behind the program's name; none where that isn't told."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii", "replace").split()
    except OSError:
        return []


def _holder(descriptor: int) -> str:
    try:
        record = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {record['pid']} on {record['host']} ({record['owner']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


class _Holder:
    """Gives back at the end of a ``with`` what was taken at its start."""

    _lock: _FileLock | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class DeviceLock(_Holder):
    """Holds a device for one study on this machine. Raises ``DeviceBusyError`` saying who has it."""

    def __init__(self, device: Device, study: str) -> None:
        self._device = device
        self._study = study

    def __enter__(self) -> DeviceLock:
        lock = _FileLock(_lock_folder() / f"{_device_key(self._device)}.lock", f"study {self._study}")
        try:
            holder = lock.acquire()
        except OSError as error:
            raise InfrastructureError(
                f"can't lock {self._device.label}: {error.strerror} ({lock.path})",
                hint="make that file writable, or set XDG_CACHE_HOME to a folder that is",
            ) from error
        if holder is not None:
            raise DeviceBusyError(
                f"{self._device.label} ({self._device.name}) is held by {holder}",
                hint="two studies on one device would disturb each other: wait, or choose another device",
            )
        self._lock = lock
        return self


class FolderLock(_Holder):
    """Holds a study's folder for one process. Raises ``StorageError`` saying who has it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> FolderLock:
        lock = _FileLock(self._folder / LOCK, str(self._folder))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            holder = lock.acquire()
        except OSError as error:
            raise StorageError(
                f"can't lock the study's folder {self._folder}: {error.strerror}",
                hint="the folder must be on a file system that can be written and locked",
            ) from error
        if holder is not None:
            raise already_running(self._folder, f", in {holder}")
        self._lock = lock
        return self


@contextmanager
def both_locks(folder: Path, device: Device) -> Iterator[None]:
    """Holds a study's folder and its device. Raises as either does, with no folder left behind that wasn't there."""
    wanted: list[AbstractContextManager[object]] = [FolderLock(folder), DeviceLock(device, str(folder))]
    with ExitStack() as locks:
        # A folder that is only made for its lock is made last: where the device is busy it would stay behind, empty.
        for lock in wanted if folder.exists() else reversed(wanted):
            locks.enter_context(lock)
        yield


def already_running(folder: Path, where: str = "") -> StorageError:
    """The error for a second study in a folder; ``where``: in which process the first one is, where that is known."""
    hint = "wait for it to end, stop it with Ctrl-C, or give this one another folder"
    return StorageError(f"the study in {folder} is already running{where}", hint=hint)


def _device_key(device: Device) -> str:
    """One name a physical device. The machine is part of it: a home folder may be shared between machines."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", f"{socket.gethostname()}-{kind_of(device).lock_key(device)}")


def _lock_folder() -> Path:
    """The first folder that can be written; the one in the shared temporary folder only where nobody else can.

    XDG_RUNTIME_DIR comes after the cache: a login shell has it and cron or ssh may not, and two studies
    that look in two places exclude nothing. So do those of two current folders where one is named relative to it.
    """
    named = (os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR"))
    cache, runtime = (place if os.path.isabs(place) else "" for place in named)
    # A container's user may have no home: neither HOME nor an entry in /etc/passwd.
    usual = os.path.join(os.path.expanduser("~"), ".cache")
    candidates = [Path(place) for place in (cache or usual, runtime) if os.path.isabs(place)]
    shared = f"user-{os.getuid()}"
    for candidate in [*candidates, None]:
        try:
            # Asked last: it raises where no temporary folder takes a file.
            place = Path(tempfile.gettempdir()) / shared if candidate is None else candidate
            if candidate is None:
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
                _make_private(place)
            folder = place / "autotune"
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise InfrastructureError(
        "no folder to keep locks in",
        hint=f"make one of these writable: {', '.join(map(str, candidates))}, or a temporary folder (TMPDIR)",
    )


def _make_private(folder: Path) -> None:
    """Closes the folder to others. Raises ``OSError`` for a link, or another user's: its name can be guessed."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it isn't this user's")
    if status.st_mode & 0o077:
        folder.chmod(0o700)
