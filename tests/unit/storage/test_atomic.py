"""A file is the old one or the new one, whatever happens in between."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tuner.errors import StorageError
from tuner.storage.atomic import write_durably, write_named


def test_a_file_is_written_with_its_folders_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "best.json"
    write_durably(path, b"old")
    write_durably(path, b"")
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["best.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_reader_of_the_old_file_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    write_durably(path, b"old")
    with path.open("rb") as reader:
        write_durably(path, b"new")
        assert reader.read() == b"old"


def _in_a_process(work: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(work), *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_process_killed_in_the_middle_leaves_the_old_file(tmp_path: Path, step: str) -> None:
    path = tmp_path / "best.json"
    path.write_bytes(b"old")
    work = """
        import os, signal, sys
        from pathlib import Path
        from tuner.storage.atomic import write_durably
        setattr(os, sys.argv[2], lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
        write_durably(Path(sys.argv[1]), b"new")
    """
    assert _in_a_process(work, path, step).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    write_durably(path, b"newer")  # what the dead one left is in nobody's way
    assert path.read_bytes() == b"newer"


def test_a_file_that_does_not_fit_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    path.write_bytes(b"old")
    work = """
        import resource, sys
        from pathlib import Path
        from tuner.storage.atomic import write_durably
        from tuner.errors import StorageError
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            write_durably(Path(sys.argv[1]), b"x" * 100_000)
        except StorageError as error:
            print(error.message, error.hint)
    """
    ended = _in_a_process(work, path)
    assert f"can't write {path}" in ended.stdout, ended.stderr
    assert "free some space" in ended.stdout
    assert os.listdir(tmp_path) == ["best.json"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("place", ["file/best.json", "folder", "x" * 300])
def test_a_place_that_can_not_be_written_is_told(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError) as caught:
        write_durably(tmp_path / place, b"new")
    assert str(tmp_path / place) in caught.value.message
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_durably(tmp_path / "best.json", b"new")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("number", "is_told"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_folder_that_its_file_system_never_syncs_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, is_told: bool
) -> None:
    """As CIFS and FUSE may have it: the file itself is written by then."""
    original = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError) if is_told else contextlib.nullcontext():
        write_durably(tmp_path / "best.json", b"new")
    assert (tmp_path / "best.json").read_bytes() == b"new"


def test_a_link_stays_one_and_its_file_is_written(tmp_path: Path) -> None:
    """As a fleet's best.json is in a folder that machines share."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "fleet.json").write_bytes(b"old")
    for name, target in (("whole", shared / "fleet.json"), ("dangling", shared / "new.json")):
        link = tmp_path / name
        link.symlink_to(target)
        write_named(link, b"new")
        assert link.is_symlink()
        assert target.read_bytes() == b"new"
    assert sorted(os.listdir(shared)) == ["fleet.json", "new.json"]


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """``--svg /dev/null`` by root would make a file of it, for every process of the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_named(pipe, b"new")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_standard_output_is_added_to(tmp_path: Path) -> None:
    """What a shell had it lead to holds lines from before, and gets those that follow."""
    log = tmp_path / "log"
    work = """
        from pathlib import Path
        from tuner.storage.atomic import write_named
        print("before", flush=True)
        write_named(Path("/dev/stdout"), b"picture\\n")
        print("after", flush=True)
    """
    with log.open("ab") as file:
        subprocess.run([sys.executable, "-c", textwrap.dedent(work)], stdout=file, timeout=60, check=True)
    assert log.read_text() == "before\npicture\nafter\n"
    piped = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(work)], capture_output=True, text=True, timeout=60, check=True
    )
    assert piped.stdout == "before\npicture\nafter\n"
    assert Path("/dev/stdout").is_symlink()
