"""A file is the old one or the new one, whatever happens in between."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tuner.errors import StorageError
from tuner.storage.atomic import write_durably


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
