"""The one repository over a study's tables.

Every write is one short transaction. On SQLite it begins with ``BEGIN IMMEDIATE``: stock pysqlite begins at the
first write, and two processes can then claim the same trial (measured: 23 of 200).
"""

from __future__ import annotations

import os
import resource
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from tuner.errors import StorageError
from tuner.model import Config, Outcome, Phase, Side, Trial
from tuner.storage import codec, schema
from tuner.storage.schema import study_table, trial_table

BUSY_TIMEOUT_MS = 60_000
_FILE = "autotune-file"
"""Under this name a connection to SQLite knows which file it has open."""


class TrialState(StrEnum):
    """Where a trial is. Only ``finished`` ones have an outcome."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True)
class StudyRecord:
    """A study's row. ``created`` is in seconds since the epoch."""

    id: int
    name: str
    identity: Mapping[str, Any]
    space: Mapping[str, Any]
    state: str
    created: float


@dataclass(frozen=True)
class NewTrial:
    """What a trial is begun for. Each field is as in ``Trial``; ``why`` is for people, the others tell runs apart."""

    phase: Phase
    config: Config
    why: str = ""
    round: int | None = None
    seed: int | None = None
    group: tuple[int, ...] = ()
    samples: int | None = None
    side: Side | None = None

    def numbered(self, number: int) -> Trial:
        """The trial of that number, without an outcome."""
        return Trial(
            number, self.phase, self.config, self.why, None, self.round, self.seed, self.group, self.samples,
            self.side,
        )  # fmt: skip

    def is_run_of(self, trial: Trial) -> bool:
        """Whether the trial is the same run, whatever was said of why."""
        own = (self.phase, self.config, self.round, self.seed, self.group, self.samples, self.side)
        others = (trial.phase, trial.config, trial.round, trial.seed, trial.group, trial.samples, trial.side)
        return own == others


@dataclass(frozen=True)
class TrialRecord:
    """A trial's row. ``owner`` is ``host:pid:starttime`` of the process that runs it."""

    trial: Trial
    state: TrialState
    owner: str
    attempts: int
    started: float | None
    finished: float | None


def holds_results(records: Iterable[TrialRecord]) -> bool:
    """Whether one of a study's trials has finished, or its process died with one, whose outcome may lie on disk.

    A study whose script failed as written, or that was stopped before it was measured, holds none.
    """
    return any(record.state is not TrialState.WAITING for record in records)


class Repository:
    """The only way to a study's tables. Every method raises ``StorageError`` naming the database.

    Tables that the version before wrote are migrated, while ``exclusive`` is held: the lock of the study's folder,
    unless the caller holds that already. Others than those are a ``StorageError``. ``place``: what a copy is one of.
    """

    def __init__(
        self, url: str, exclusive: AbstractContextManager[object] | None = None, place: str | None = None
    ) -> None:
        self.url = url
        self._place = place or _place(url)
        with self._reporting():
            self._engine = sa.create_engine(url)
            prepare_engine(self._engine)
        try:
            self._prepare(exclusive or nullcontext())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    def create_study(self, name: str, identity: Mapping[str, Any]) -> StudyRecord:
        """A new study. A name that exists is a ``StorageError``."""
        created = time.time()
        with self._reporting(), self._engine.begin() as connection:
            row = {"name": name, "identity": codec.dumps(identity), "state": "running", "created": created}
            result = connection.execute(study_table.insert().values(**row, space="{}", finals="{}"))
            assert result.inserted_primary_key is not None
            return StudyRecord(int(result.inserted_primary_key[0]), name, dict(identity), {}, "running", created)

    def studies(self) -> tuple[StudyRecord, ...]:
        """All studies, oldest first."""
        with self._reporting(), self._engine.connect() as connection:
            rows = connection.execute(sa.select(study_table).order_by(study_table.c.id)).all()
            return tuple(
                StudyRecord(r.id, r.name, codec.loads(r.identity), codec.loads(r.space), r.state, r.created)
                for r in rows
            )

    def save_identity(self, study_id: int, identity: Mapping[str, Any]) -> None:
        """Makes the study one of something else: only where its records hold no results."""
        self._update_study(study_id, identity=codec.dumps(identity))

    def save_space(self, study_id: int, space: Mapping[str, Any]) -> None:
        """Keeps what the search space resolved to, for reports."""
        self._update_study(study_id, space=codec.dumps(space))

    def finals(self, study_id: int) -> dict[str, Any]:
        """What ``save_finals`` kept, empty before."""
        with self._reporting(), self._engine.connect() as connection:
            row = connection.execute(sa.select(study_table.c.finals).where(study_table.c.id == study_id)).one()
            return dict(codec.loads(row.finals))

    def save_finals(self, study_id: int, finals: Mapping[str, Any]) -> None:
        """Keeps who meets in the finals, so that a resumed study goes on with the same ones."""
        self._update_study(study_id, finals=codec.dumps(finals))

    def save_state(self, study_id: int, state: str) -> None:
        """``running`` or ``finished``."""
        self._update_study(study_id, state=state)

    def start_trial(self, study_id: int, new: NewTrial, owner: str) -> Trial:
        """A new trial with the next number, running and owned at once."""
        with self._reporting(), self._engine.begin() as connection:
            _hold(connection, study_id)
            last = connection.execute(
                sa.select(sa.func.max(trial_table.c.number)).where(trial_table.c.study_id == study_id)
            ).scalar()
            number = 0 if last is None else int(last) + 1
            connection.execute(
                trial_table.insert().values(
                    study_id=study_id, number=number, phase=new.phase.value, config=codec.encode_config(new.config),
                    why=new.why, round=new.round, seed=new.seed, group=codec.dumps(new.group), samples=new.samples,
                    side=None if new.side is None else new.side.value,
                    state=TrialState.RUNNING.value, owner=owner, attempts=1, started=time.time(),
                )
            )  # fmt: skip
        return new.numbered(number)

    def claim_trial(
        self, study_id: int, owner: str, without: Collection[Phase] = (), run: NewTrial | None = None
    ) -> Trial | None:
        """The waiting trial with the lowest number, now running and owned; None when nothing waits.

        ``without``: phases whose trials go on waiting. ``run``: only such a run is claimed, None for any.
        """
        with self._reporting(), self._engine.begin() as connection:
            _hold(connection, study_id)
            waiting = (trial_table.c.study_id == study_id) & (trial_table.c.state == TrialState.WAITING.value)
            if without:
                waiting &= trial_table.c.phase.not_in([phase.value for phase in without])
            rows = connection.execute(sa.select(trial_table).where(waiting).order_by(trial_table.c.number)).all()
            row = next((row for row in rows if run is None or run.is_run_of(_record(row).trial)), None)
            if row is None:
                return None
            connection.execute(
                trial_table.update()
                .where((trial_table.c.study_id == study_id) & (trial_table.c.number == row.number))
                .values(
                    state=TrialState.RUNNING.value, owner=owner, attempts=row.attempts + 1, started=time.time()
                )
            )
            return _record(row).trial

    def finish_trial(self, study_id: int, number: int, outcome: Outcome, finished: float | None = None) -> bool:
        """Stores an outcome, once: False where the trial isn't running any more.

        ``finished``: when it ended, in seconds since the epoch; None for now.
        """
        open_row = (
            (trial_table.c.study_id == study_id)
            & (trial_table.c.number == number)
            & (trial_table.c.state == TrialState.RUNNING.value)
        )
        values = {
            "state": TrialState.FINISHED.value,
            "outcome": codec.encode_outcome(outcome),
            "finished": time.time() if finished is None else finished,
        }
        with self._reporting(), self._engine.begin() as connection:
            return connection.execute(trial_table.update().where(open_row).values(**values)).rowcount == 1

    def requeue_trial(self, study_id: int, number: int, *, attempts: int | None = None) -> None:
        """Lets the trial wait to be run again; ``attempts`` resets how often that was tried."""
        values: dict[str, Any] = {"state": TrialState.WAITING.value, "owner": "", "outcome": None, "finished": None}
        if attempts is not None:
            values["attempts"] = attempts
        with self._reporting(), self._engine.begin() as connection:
            row = (trial_table.c.study_id == study_id) & (trial_table.c.number == number)
            connection.execute(trial_table.update().where(row).values(**values))

    def records(self, study_id: int) -> tuple[TrialRecord, ...]:
        """All trials of a study in order, with state and owner."""
        with self._reporting(), self._engine.connect() as connection:
            query = sa.select(trial_table).where(trial_table.c.study_id == study_id).order_by(trial_table.c.number)
            return tuple(_record(row) for row in connection.execute(query).all())

    def trials(self, study_id: int) -> tuple[Trial, ...]:
        """The finished trials of a study, in order."""
        return tuple(r.trial for r in self.records(study_id) if r.state is TrialState.FINISHED)

    def _update_study(self, study_id: int, **values: Any) -> None:
        with self._reporting(), self._engine.begin() as connection:
            connection.execute(study_table.update().where(study_table.c.id == study_id).values(**values))

    def _prepare(self, exclusive: AbstractContextManager[object]) -> None:
        """Creates the tables, or sees to it that those there are of this version."""
        with self._reporting(), self._engine.begin() as connection:
            version = schema.prepare(connection)
        if version == schema.SCHEMA_VERSION:
            return
        if version != schema.OLDEST_VERSION:
            newer = version > schema.SCHEMA_VERSION
            raise StorageError(
                f"{self._place} was written by {'a newer' if newer else 'an older'} autotune"
                f" (schema {version}, this one knows {schema.SCHEMA_VERSION})",
                hint=f"{'upgrade autotune, or ' if newer else ''}start a new study with --new: this one is kept"
                " beside it, and its best.json stays good",
            )
        with exclusive, self._reporting(), self._engine.begin() as connection:
            schema.migrate(connection)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turns the database's faults into one that names the place and says what mends it."""
        try:
            yield
        except (SQLAlchemyError, OSError) as error:
            raise storage_error(error, self._place) from error
        except ValueError as error:
            raise StorageError(
                f"{self._place} holds something that autotune didn't write: {error}",
                hint="restore the file from a copy, or start a new study with --new",
            ) from error


def prepare_engine(engine: sa.Engine) -> None:
    """Makes SQLite safe for several processes and for power cuts; other databases are left as they are.

    For any engine on a study's database, also Optuna's. ``synchronous=FULL``: a trial costs seconds and a sync
    milliseconds, so nothing is gained by risking the last ones. A transaction on a file that isn't at its path any
    more is an ``OSError``: it would be written, and nobody would ever find it.
    """
    if engine.dialect.name != "sqlite":
        return

    path = os.path.abspath(engine.url.database or "")

    def connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # or pysqlite begins transactions by itself, and too late
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        _keep_a_log_ahead(cursor)
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()
        record.info[_FILE] = _file_at(path)

    def begin(connection: sa.Connection) -> None:
        if connection.info.get(_FILE) != _file_at(path):
            raise OSError(f"its file was {'replaced' if _file_at(path) else 'removed'} while it was in use")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    sa.event.listen(engine, "connect", connect)
    sa.event.listen(engine, "begin", begin)


def _file_at(path: str) -> tuple[int, int] | None:
    """What tells the file that is at this path now from others; None where there is none.

    Where that can't be told, as behind a network that is away, it is the ``OSError`` that says why.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _keep_a_log_ahead(cursor: sqlite3.Cursor) -> None:
    """Sets SQLite's write-ahead log. While another process writes a new file, SQLite refuses that without waiting."""
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
        time.sleep(0.02)


def storage_error(error: BaseException, place: str) -> StorageError:
    """The fault as a ``StorageError`` with a hint by what the database said."""
    text = str(getattr(error, "orig", None) or error)
    lowered = text.lower()
    is_limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    for pattern, hint in _HINTS:
        if pattern in lowered:
            also = "; or the limit of a file's size is too low (ulimit -f)" if is_limited and "disk" in pattern else ""
            return StorageError(f"can't use {place}: {text}", hint=hint + also)
    return StorageError(f"can't use {place}: {text}", hint="check the folder and the disk, then run the study again")


_HINTS = (
    ("while it was in use", "run the study again, and leave its folder where it is meanwhile"),
    ("while it is read", "a study writes it: run the command once more"),
    ("permission denied", "have their owner make the study's folder and its files readable"),
    ("readonly", "make the study's folder and its files writable, or copy it to where they are"),
    ("unable to open", "the study's folder must exist and be writable: choose another one"),
    ("no space", "free some disk space, then run the study again: it resumes where it was"),
    ("disk is full", "free some disk space, then run the study again: it resumes where it was"),
    ("disk i/o error", "the disk is full or failing: free some space, then run the study again"),
    ("not a database", "the file is something else: move it away, or start a new study with --new"),
    ("malformed", "the database is damaged: restore it from a copy, or start a new study with --new"),
    ("locked", "another process holds the database: end it, then run the study again"),
    ("study.name", "a study of that name is there already"),
    ("study_name_key", "a study of that name is there already"),
    ("can't load plugin", "install the driver of that database, such as psycopg for PostgreSQL"),
    ("no module named", "install the driver of that database, such as psycopg for PostgreSQL"),
    ("could not parse", "a database is given as sqlite:///path or postgresql+psycopg://user@host/name"),
)


def _hold(connection: sa.Connection, study_id: int) -> None:
    """One process at a time numbers or claims trials of a study, also where ``BEGIN`` locks nothing (PostgreSQL)."""
    connection.execute(sa.select(study_table.c.id).where(study_table.c.id == study_id).with_for_update())


def _record(row: Any) -> TrialRecord:
    outcome = codec.decode_outcome(row.outcome) if row.outcome is not None else None
    trial = Trial(
        row.number, Phase(row.phase), codec.decode_config(row.config), row.why, outcome, row.round, row.seed,
        _group_of(row.group), row.samples, None if row.side is None else Side(row.side),
    )  # fmt: skip
    return TrialRecord(trial, TrialState(row.state), row.owner, row.attempts, row.started, row.finished)


def _group_of(text: str) -> tuple[int, ...]:
    numbers = codec.loads(text)
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise ValueError(f"not numbers of trials: {text!r:.80}")
    return tuple(numbers)


def _place(url: str) -> str:
    """The database as people know it: a path, or an address without its password."""
    try:
        parsed = sa.make_url(url)
    except SQLAlchemyError:
        return url.rpartition("@")[2]
    if parsed.get_backend_name() == "sqlite":
        return str(Path(parsed.database)) if parsed.database else "the database in memory"
    return parsed.render_as_string(hide_password=True)
