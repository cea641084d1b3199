"""A database on a disk that is full or may not be written: told, never a traceback, and whole afterwards."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from support.strangers import NOBODY, open_to_strangers

from tuner.errors import StorageError
from tuner.model import BASELINE, Phase
from tuner.storage.database import NewTrial, Repository


def _run(work: str, *arguments: object) -> dict[str, str]:
    """Runs the work in a process of its own; it prints ``name=value`` lines."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(work), *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return dict(line.split("=", 1) for line in ended.stdout.splitlines())


DISK_FULL = """
import resource, sys
from tuner.errors import StorageError
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase
from tuner.storage.database import NewTrial, Repository
repository = Repository(sys.argv[1])
study = repository.create_study("train", {}).id
resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, resource.RLIM_INFINITY))
stored = 0
try:
    for number in range(200):
        repository.start_trial(study, NewTrial(Phase.SEARCH, Config(x=1), "why " * 500), "me")
        stored = number + 1
        assert repository.finish_trial(study, number, Outcome(OutcomeKind.CRASHED, "crash", "detail " * 500))
except StorageError as error:
    print(f"message={error.message}")
    print(f"hint={error.hint}")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(f"stored={stored}")
print(f"readable={len(repository.records(study))}")
print(f"next={repository.start_trial(study, NewTrial(Phase.SEARCH, BASELINE), 'me').number}")
"""


def test_a_full_disk_is_told_and_the_study_goes_on_once_there_is_space(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    told = _run(DISK_FULL, f"sqlite:///{path}")
    assert str(path) in told["message"]
    assert "free some" in told["hint"] and "ulimit -f" in told["hint"], "nothing tells a disk from such a limit here"
    assert 0 < int(told["stored"]) < 200
    assert told["readable"] == told["stored"] == told["next"]
    again = Repository(f"sqlite:///{path}")
    assert len(again.records(1)) == int(told["stored"]) + 1
    again.close()


READ_ONLY = """
import os, sys
from tuner.errors import StorageError
from tuner.storage.database import Repository
Repository("sqlite://").close()  # imports the driver: a stranger may not be able to read the interpreter's folder
if os.getuid() == 0:
    os.setuid(int(sys.argv[2]))  # root may write anywhere
try:
    repository = Repository(sys.argv[1])
    repository.create_study("another", {})
    print("message=none")
except StorageError as error:
    print(f"message={error.message}")
    print(f"hint={error.hint}")
"""


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "study.db"
    if exists:
        made = Repository(f"sqlite:///{path}")
        made.start_trial(made.create_study("train", {}).id, NewTrial(Phase.SEARCH, BASELINE), "me")
        made.close()
        path.chmod(0o444)
    open_to_strangers(tmp_path)
    tmp_path.chmod(0o555)
    try:
        told = _run(READ_ONLY, f"sqlite:///{path}", NOBODY)
    finally:
        tmp_path.chmod(0o755)
    assert str(path) in told["message"]
    assert "writable" in told["hint"]
    assert os.listdir(tmp_path) == (["study.db"] if exists else [])


def test_a_new_database_that_another_process_writes_is_waited_for(tmp_path: Path) -> None:
    """SQLite refuses the change of a new file's journal at once, whatever time it was given to wait."""
    path = tmp_path / "study.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE anything (number INTEGER)")
    end = threading.Timer(0.5, other.execute, ["COMMIT"])
    end.start()
    try:
        Repository(f"sqlite:///{path}").close()
    finally:
        end.join()
        other.close()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_study_whose_folder_goes_meanwhile_is_told_at_once(tmp_path: Path, how: str) -> None:
    """It went on to its end in a file that nobody finds any more, and named a result and a way to go on."""
    folder = tmp_path / "study"
    folder.mkdir()
    repository = Repository(f"sqlite:///{folder}/study.db")
    study = repository.create_study("train", {}).id
    repository.start_trial(study, NewTrial(Phase.BASELINE, BASELINE), "me")
    folder.rename(tmp_path / "elsewhere")
    if how == "replaced":
        folder.mkdir()
        Repository(f"sqlite:///{folder}/study.db").close()
    with pytest.raises(StorageError, match=f"its file was {how} while it was in use") as told:
        repository.start_trial(study, NewTrial(Phase.SEARCH, BASELINE), "me")
    assert "leave its folder where it is" in told.value.hint
    with pytest.raises(StorageError, match=how):
        repository.records(study)
    repository.close()


OUT_OF_REACH = """
import os, sys
from tuner.errors import StorageError
from tuner.storage.database import Repository
Repository("sqlite://").close()  # as in READ_ONLY
if not os.getuid():
    os.setuid(int(sys.argv[2]))
repository = Repository(f"sqlite:///{sys.argv[1]}/study.db")
os.chmod(sys.argv[1], 0)
try:
    repository.create_study("train", {})
except StorageError as error:
    print(f"message={error.message}")
"""


def test_a_folder_that_cant_be_looked_into_is_not_told_as_removed(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    open_to_strangers(tmp_path)
    if not os.getuid():
        os.chown(folder, NOBODY, -1)
    try:
        told = _run(OUT_OF_REACH, folder, NOBODY)
    finally:
        folder.chmod(0o755)
    assert "Permission denied" in told["message"] and "removed" not in told["message"]
