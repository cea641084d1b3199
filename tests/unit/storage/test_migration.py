"""A database of the version before: its trials' fields come from the words they were begun with, once and whole."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa
from support import old_study
from support.strangers import NOBODY, open_to_strangers

from tuner.errors import StorageError
from tuner.model import Phase, Side, Trial
from tuner.storage.database import Repository
from tuner.storage.lock import FolderLock
from tuner.storage.schema import SCHEMA_VERSION, migrate


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The folder of an old study that ended."""
    return old_study.unpack(tmp_path) / "finished"


def trials_in(folder: Path) -> tuple[Trial, ...]:
    repository = Repository(old_study.address(folder))
    try:
        return repository.trials(1)
    finally:
        repository.close()


def version_of(folder: Path) -> int:
    with sqlite3.connect(folder / "study.db") as connection:
        version = int(connection.execute("SELECT version FROM autotune_schema").fetchone()[0])
    connection.close()
    return version


def columns_of(folder: Path) -> set[str]:
    with sqlite3.connect(folder / "study.db") as connection:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(trial)")}
    connection.close()
    return columns


def check_fields(trials: tuple[Trial, ...]) -> None:
    assert [trial.number for trial in trials] == list(range(old_study.TRIALS))
    by_phase = {phase: [trial for trial in trials if trial.phase is phase] for phase in Phase}
    assert [trial.side for trial in by_phase[Phase.PROBE]] == [Side.COMPUTE, Side.LOADER, Side.HALF]
    screens = Counter((trial.group, trial.samples) for trial in by_phase[Phase.SCREEN])
    assert screens == {((), 6400): 3, ((6,), 6400): 3, ((7,), 6400): 3}
    assert all(bool(trial.group) is bool(trial.config) for trial in by_phase[Phase.SCREEN])
    assert {(trial.group, trial.samples) for trial in by_phase[Phase.FINALS]} == {((5, 6, 7), None)}
    others = [*by_phase[Phase.BASELINE], *by_phase[Phase.SEARCH]]
    assert {(trial.group, trial.samples, trial.side) for trial in others} == {((), None, None)}
    assert all(trial.outcome is not None for trial in trials)


def test_fields_come_from_the_words_of_an_old_study(old: Path) -> None:
    assert version_of(old) == 2
    check_fields(trials_in(old))
    assert version_of(old) == SCHEMA_VERSION
    check_fields(trials_in(old))


@pytest.mark.slow  # 6 s beside three others
def test_a_postgresql_database_is_migrated_too(old: Path, postgresql_url: str) -> None:
    source, target = sa.create_engine(old_study.address(old)), sa.create_engine(postgresql_url)
    tables = sa.MetaData()
    tables.reflect(source)
    tables.create_all(target)
    with source.connect() as reading, target.begin() as writing:
        for table in tables.sorted_tables:
            writing.execute(table.insert(), [row._asdict() for row in reading.execute(table.select())])
    source.dispose()
    target.dispose()
    for _ in range(2):
        repository = Repository(postgresql_url)
        check_fields(repository.trials(1))
        repository.close()


OPEN = """
import sys
from tuner.storage.database import Repository
print("ready", flush=True)
sys.stdin.readline()
print(len(Repository(sys.argv[1]).trials(1)))
"""


def test_several_processes_at_once_migrate_it_once(old: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, old_study.address(old)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=60) for process in processes]
    assert ended == [(f"{old_study.TRIALS}\n", "")] * 4
    check_fields(trials_in(old))


def test_one_that_waited_for_another_migrates_nothing(old: Path) -> None:
    trials_in(old)
    engine = sa.create_engine(old_study.address(old))
    with engine.begin() as connection:
        migrate(connection)
    engine.dispose()
    check_fields(trials_in(old))


DIE = """
import os, signal, sys
from tuner.storage import schema
from tuner.storage.database import Repository
derive, calls = schema._fields_of, 0
def fields_of(phase, why):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return derive(phase, why)
schema._fields_of = fields_of
Repository(sys.argv[1])
"""


@pytest.mark.parametrize("row", [pytest.param(1, marks=pytest.mark.slow), 30])
def test_a_migration_that_is_killed_leaves_the_old_tables(old: Path, row: int) -> None:
    before = columns_of(old)
    command = [sys.executable, "-c", DIE, old_study.address(old), str(row)]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    assert version_of(old) == 2
    assert columns_of(old) == before
    check_fields(trials_in(old))


@pytest.mark.parametrize(
    ("phase", "why"), [("finals", "finals"), ("screen", "screen of 3"), ("probe", "the moon"), ("lunch", "")]
)
def test_words_that_no_version_wrote_are_told_and_nothing_is_changed(old: Path, phase: str, why: str) -> None:
    with sqlite3.connect(old / "study.db") as connection:
        connection.execute("UPDATE trial SET phase = ?, why = ? WHERE number = 40", (phase, why))
    connection.close()
    with pytest.raises(StorageError, match=r"study\.db holds something that autotune didn't write"):
        trials_in(old)
    assert (version_of(old), "side" in columns_of(old)) == (2, False)


def test_a_study_that_an_older_program_runs_is_not_migrated_under_it(old: Path) -> None:
    with FolderLock(old):
        with pytest.raises(StorageError, match="is already running"):
            Repository(old_study.address(old), FolderLock(old))
        assert version_of(old) == 2


READ_ONLY = """
import os, sys
from pathlib import Path
from tuner.storage.studies import read_study
from tuner.storage.database import Repository
Repository("sqlite://").close()  # imports the driver: a stranger may not be able to read the interpreter's folder
if os.getuid() == 0:
    os.setuid(int(sys.argv[2]))  # root may write anywhere
print(*[trial.number for trial in read_study(Path(sys.argv[1])).trials])
"""


@pytest.mark.parametrize("writable", ["the folder", "the database", pytest.param("", marks=pytest.mark.slow)])
def test_one_that_may_not_be_written_is_read_as_it_is(old: Path, writable: str) -> None:
    """A colleague's study, or one on a medium that can't be written, may be listed."""
    open_to_strangers(old)
    (old / "study.db").chmod(0o666 if writable == "the database" else 0o444)
    old.chmod(0o777 if writable == "the folder" else 0o555)
    ended = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(old), str(NOBODY)], capture_output=True, text=True, timeout=60, check=True
    )
    old.chmod(0o755)
    (old / "study.db").chmod(0o644)
    assert version_of(old) == 2
    assert ended.stdout.split() == [str(trial.number) for trial in trials_in(old)]
