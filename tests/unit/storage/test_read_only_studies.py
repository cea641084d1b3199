"""A study that its reader can't write: a colleague's, or one on a medium that is mounted for reading only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import worlds
from support.ran import Ran
from support.strangers import NOBODY, open_to_strangers

from tuner.errors import StorageError
from tuner.storage import studies
from tuner.storage.folder import DATABASE

KILLED = """
import os, pathlib, signal, sys
from tuner.model import BASELINE, Phase
from tuner.storage.database import NewTrial, Repository
repository = Repository(f"sqlite:///{sys.argv[1]}")
study = repository.create_study("study", {}).id
for _ in range(3):
    repository.start_trial(study, NewTrial(Phase.SEARCH, BASELINE), "me")
os.kill(os.getpid(), signal.SIGKILL)
"""
READS = """
import os, sys
from pathlib import Path
from tuner.errors import StorageError
from tuner.storage.database import Repository
from tuner.storage.studies import read_study
Repository("sqlite://").close()  # imports the driver: a stranger may not be able to read the interpreter's folder
if os.getuid() == 0:
    os.setuid(int(sys.argv[2]))  # root may write anywhere
try:
    print(*read_study(Path(sys.argv[1])).numbers)
except StorageError as error:
    print(error.message)
    print(error.hint)
"""
RESUMES = f"""
import os, sys
from pathlib import Path
sys.path.append({str(Path(worlds.__file__).parents[1])!r})
from support import worlds
from tuner.cli.planning import check_resumable
from tuner.errors import StorageError
from tuner.storage.database import Repository
Repository("sqlite://").close()
plan = worlds.plan(Path(sys.argv[1]), trials=2)
if os.getuid() == 0:
    os.setuid(int(sys.argv[2]))
try:
    check_resumable(plan)
    print("resumes")
except StorageError as error:
    print(error.message)
    print(error.hint)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder of a study that was killed, with three trials in the log that SQLite keeps ahead."""
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / DATABASE)], timeout=60, check=False)
    assert (tmp_path / f"{DATABASE}-wal").stat().st_size > 0
    return tmp_path


def read_by_a_stranger(folder: Path, does: str = READS, mode: int = 0o555) -> list[str]:
    open_to_strangers(folder)
    folder.chmod(mode)
    try:
        command = [sys.executable, "-c", does, str(folder), str(NOBODY)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    finally:
        folder.chmod(0o755)


def test_it_is_read_with_what_a_killed_study_wrote_last(killed: Path) -> None:
    names = sorted(os.listdir(killed))
    assert read_by_a_stranger(killed) == ["0 1 2"]
    assert sorted(os.listdir(killed)) == names


@pytest.mark.parametrize("fault", ["unreadable", "no database"])
def test_what_is_wrong_with_it_is_told_by_its_own_path(killed: Path, fault: str) -> None:
    if fault == "no database":
        (killed / DATABASE).write_bytes(b"something else" * 100)
        (killed / f"{DATABASE}-wal").unlink()
    else:
        (killed / DATABASE).chmod(0o200)
    message, hint = read_by_a_stranger(killed)
    assert message.startswith(f"can't use {killed / DATABASE}: ")
    assert ("readable" if fault == "unreadable" else "something else") in hint, message


def test_what_may_be_listed_is_not_resumed_for_that(tmp_path: Path) -> None:
    """``--dry-run`` said "resumes" of what the study then couldn't write."""
    Ran(worlds.plan(tmp_path, trials=2), worlds.World().outcome)
    message, hint = read_by_a_stranger(tmp_path, RESUMES, 0o777)
    assert str(tmp_path / DATABASE) in message and "writable" in hint


@pytest.mark.parametrize("times", [1, 99])
def test_what_is_written_meanwhile_is_read_again(killed: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The hint told to end the process that holds the database, which is a colleague's study."""
    seen, written = list[int](), studies._written

    def changing(folder: Path) -> dict[str, tuple[int, int]]:
        seen.append(1)
        return {**written(folder), "changes": (min(len(seen), 1 + times), 0)}

    monkeypatch.setattr(studies, "_written", changing)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    if times == 1:
        assert studies.read_study(killed).numbers == (0, 1, 2)
        return
    with pytest.raises(StorageError) as raised:
        studies.read_study(killed)
    assert "once more" in (raised.value.hint or "")
