"""A study that its reader can't write: a colleague's, or one on a medium that is mounted for reading only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.strangers import NOBODY, open_to_strangers

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


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder of a study that was killed, with three trials in the log that SQLite keeps ahead."""
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / DATABASE)], timeout=60, check=False)
    assert (tmp_path / f"{DATABASE}-wal").stat().st_size > 0
    return tmp_path


def read_by_a_stranger(folder: Path) -> list[str]:
    open_to_strangers(folder)
    folder.chmod(0o555)
    try:
        command = [sys.executable, "-c", READS, str(folder), str(NOBODY)]
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
    assert message.startswith(f"can't use {killed / DATABASE}: ") and hint
