"""Whether a study runs, as its lock tells those who don't take it."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.storage.database import Repository
from tuner.storage.folder import DATABASE, LOCK
from tuner.storage.lock import FolderLock, born
from tuner.storage.studies import read_study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    repository = Repository(f"sqlite:///{tmp_path / DATABASE}")
    repository.create_study("study", {})
    repository.close()
    return tmp_path


def test_a_study_runs_while_its_lock_is_held(study: Path) -> None:
    with FolderLock(study):
        assert read_study(study).state == "running"
    assert read_study(study).state == "stopped"


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_pid_of_a_killed_study_may_be_anothers_by_now(
    study: Path, monkeypatch: pytest.MonkeyPatch, *, is_ours: bool
) -> None:
    """Another user's, too, as most are that are started with the machine: those may not be signalled."""
    work = """
import os, pathlib, signal, sys
from tuner.storage.lock import FolderLock
FolderLock(pathlib.Path(sys.argv[1])).__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", work, str(study)], timeout=60, check=False)
    held = json.loads((study / LOCK).read_text())
    (study / LOCK).write_text(json.dumps(held | {"pid": os.getpid()}))  # as a later process with its number
    if not is_ours:
        monkeypatch.setattr("os.kill", _forbidden)
    assert read_study(study).state == "stopped"


def test_another_users_study_runs(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FolderLock(study):
        monkeypatch.setattr("os.kill", _forbidden)
        assert read_study(study).state == "running"


@pytest.mark.parametrize(
    "pid", ["0", "-1", str(2**40), "1e400", '"12345678901"', "null", "[" * 10**5 + "]" * 10**5], ids=lambda pid: pid[:9]
)
def test_a_lock_that_names_no_process_is_held_by_none(study: Path, pid: str) -> None:
    """Of a number that no process can have autotune trials ended with a traceback."""
    (study / LOCK).write_text(f'{{"host": {json.dumps(socket.gethostname())}, "pid": {pid}}}')
    assert read_study(study).state == "stopped"


def test_a_killed_study_that_nobody_has_waited_for_is_stopped(study: Path) -> None:
    """In a container whose first process waits for none of its children it was told as running for good."""
    process = subprocess.Popen(["sleep", "100"])
    holder = {"host": socket.gethostname(), "pid": process.pid, "born": born(process.pid)}
    (study / LOCK).write_text(json.dumps(holder))
    assert read_study(study).state == "running"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert read_study(study).state == "stopped"
    process.wait()


def _forbidden(pid: int, number: int) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")
