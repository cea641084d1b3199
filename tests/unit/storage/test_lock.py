"""Locks exclude others while their owner lives, say who that is, and die with it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.devices.cpu import cpu_device
from tuner.errors import DeviceBusyError, InfrastructureError, StorageError
from tuner.model import Device
from tuner.storage.lock import DeviceLock, FolderLock

ROOT = Path(__file__).resolve().parents[3]
CARD = Device("cuda", 0, "NVIDIA H100", "GPU-1234", 80 * 2**30)


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@contextmanager
def elsewhere(expression: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until it is told to end."""
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tuner.devices.cpu import cpu_device
from tuner.storage.lock import DeviceLock, FolderLock
with {expression}:
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_device_is_refused_while_another_process_holds_it_and_says_who() -> None:
    with elsewhere("DeviceLock(cpu_device(), '/studies/resnet')") as owner:
        with pytest.raises(DeviceBusyError) as caught, DeviceLock(cpu_device(), "mine"):
            pass
        assert str(owner.pid) in caught.value.message
        assert "/studies/resnet" in caught.value.message
        assert caught.value.hint


def test_a_dead_owner_holds_nothing() -> None:
    with elsewhere("DeviceLock(cpu_device(), 'theirs')") as owner:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        with DeviceLock(cpu_device(), "mine"):
            pass


def test_a_lock_is_given_back_and_can_be_taken_again() -> None:
    lock = DeviceLock(CARD, "mine")
    for _ in range(2):
        with lock, pytest.raises(DeviceBusyError), DeviceLock(CARD, "other"):
            pass


def test_devices_are_told_apart_by_card() -> None:
    with DeviceLock(CARD, "a"), DeviceLock(replace(CARD, uuid="GPU-5678"), "b"), DeviceLock(cpu_device(), "c"):
        pass
    with DeviceLock(CARD, "a"), pytest.raises(DeviceBusyError), DeviceLock(replace(CARD, index=1), "b"):
        pass


def test_an_error_inside_gives_the_lock_back() -> None:
    with pytest.raises(ZeroDivisionError), DeviceLock(CARD, "a"):
        raise ZeroDivisionError
    with DeviceLock(CARD, "b"):
        pass


def test_a_cache_that_depends_on_the_current_folder_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two studies of different folders would look in two places; the XDG specification has it ignored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "runtime")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with DeviceLock(CARD, "a"):
        assert sorted(os.listdir(tmp_path)) == ["home"]
        assert list((tmp_path / "home" / ".cache" / "autotune").glob("*.lock"))


def test_no_writable_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"  # no folder can be made in it, not even by root, who may write anywhere else
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(file))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(file))
    with pytest.raises(InfrastructureError, match="no folder to keep locks in") as caught, DeviceLock(CARD, "a"):
        pass
    assert str(file) in caught.value.hint


def test_no_temporary_folder_that_takes_a_file_is_no_bug_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``ulimit -f 0`` has it, or full disks: Python asks by writing a file."""

    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", none)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with DeviceLock(CARD, "a"):
        pass
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InfrastructureError, match="no folder to keep locks in"), DeviceLock(CARD, "a"):
        pass


def test_a_study_folder_is_refused_while_another_process_works_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    with elsewhere(f"FolderLock(Path({str(folder)!r}))") as owner:
        with pytest.raises(StorageError) as caught, FolderLock(folder):
            pass
        assert str(owner.pid) in caught.value.message
    with FolderLock(folder):
        pass


def test_a_study_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "study").write_text("")
    with pytest.raises(StorageError), FolderLock(tmp_path / "study"):
        pass


# The folder of last resort lies where anybody may write.


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the folder in the shared temporary folder, which alone can be written; it isn't made yet."""
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    temporary = tmp_path / "tmp"
    temporary.mkdir(mode=0o777)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(temporary))
    return temporary / f"user-{os.getuid()}"


def test_the_shared_place_is_made_for_its_user_alone(shared: Path) -> None:
    with DeviceLock(CARD, "a"):
        assert shared.stat().st_mode & 0o777 == 0o700
    shared.chmod(0o755)  # as earlier versions made it
    with DeviceLock(CARD, "a"):
        assert shared.stat().st_mode & 0o777 == 0o700


def test_whoever_has_no_home_takes_the_shared_place(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container's user: there is no HOME, and nobody of that number in /etc/passwd."""

    def unknown(user: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {user}")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with DeviceLock(CARD, "a"):
        assert list((shared / "autotune").glob("*.lock"))


def test_a_link_in_the_shared_place_is_not_followed(shared: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    shared.symlink_to(theirs)
    with pytest.raises(InfrastructureError, match="no folder to keep locks in"), DeviceLock(CARD, "a"):
        pass
    assert list(theirs.iterdir()) == []


def test_another_users_folder_in_the_shared_place_is_not_used(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.mkdir(mode=0o700)
    user = os.geteuid()
    monkeypatch.setattr("tuner.storage.lock.os.geteuid", lambda: user + 1)
    with pytest.raises(InfrastructureError, match="no folder to keep locks in"), DeviceLock(CARD, "a"):
        pass


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_file_that_is_a_link_empties_nobodys_file(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    precious, folder = tmp_path / "precious.txt", tmp_path / "study"
    precious.write_text("kept")
    folder.mkdir()
    link(precious, folder / ".lock")
    with pytest.raises(StorageError, match="can't lock"), FolderLock(folder):
        pass
    assert precious.read_text() == "kept"
