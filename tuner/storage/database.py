"""A study's tables and the one repository over them; nothing else imports SQLAlchemy.

Every write is one short transaction. On SQLite it begins with ``BEGIN IMMEDIATE``: stock pysqlite begins at the
first write, and two processes can then claim the same trial (measured: 23 of 200).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from tuner.errors import StorageError
from tuner.model import Config, Outcome, Phase, Trial
from tuner.storage import codec

SCHEMA_VERSION = 2
BUSY_TIMEOUT_MS = 60_000

_metadata = sa.MetaData()
_schema = sa.Table("autotune_schema", _metadata, sa.Column("version", sa.Integer, nullable=False))
_study = sa.Table(
    "study", _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(200), nullable=False, unique=True),
    sa.Column("identity", sa.Text, nullable=False),
    sa.Column("space", sa.Text, nullable=False, default="{}"),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("finals", sa.Text, nullable=False, default="{}"),
    sa.Column("created", sa.Float, nullable=False),
)  # fmt: skip
_trial = sa.Table(
    "trial", _metadata,
    sa.Column("study_id", sa.Integer, sa.ForeignKey("study.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("phase", sa.String(20), nullable=False),
    sa.Column("config", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False, default=""),
    sa.Column("round", sa.Integer),
    sa.Column("seed", sa.Integer),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("owner", sa.String(200), nullable=False, default=""),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("outcome", sa.Text),
    sa.Column("started", sa.Float),
    sa.Column("finished", sa.Float),
)  # fmt: skip


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
class TrialRecord:
    """A trial's row. ``owner`` is ``host:pid:starttime`` of the process that runs it."""

    trial: Trial
    state: TrialState
    owner: str
    attempts: int
    started: float | None
    finished: float | None


class Repository:
    """The only way to a study's tables. Every method raises ``StorageError`` naming the database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._place = _place(url)
        with self._told():
            self._engine = sa.create_engine(url)
            prepare_engine(self._engine)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    def create_study(self, name: str, identity: Mapping[str, Any]) -> StudyRecord:
        """A new study. A name that exists is a ``StorageError``."""
        created = time.time()
        with self._told(), self._engine.begin() as connection:
            row = {"name": name, "identity": codec.dumps(identity), "state": "running", "created": created}
            result = connection.execute(_study.insert().values(**row, space="{}", finals="{}"))
            assert result.inserted_primary_key is not None
            return StudyRecord(int(result.inserted_primary_key[0]), name, dict(identity), {}, "running", created)

    def load_study(self, name: str) -> StudyRecord | None:
        """The study of that name."""
        return next((study for study in self.studies() if study.name == name), None)

    def studies(self) -> tuple[StudyRecord, ...]:
        """All studies, oldest first."""
        with self._told(), self._engine.connect() as connection:
            rows = connection.execute(sa.select(_study).order_by(_study.c.id)).all()
            return tuple(
                StudyRecord(r.id, r.name, codec.loads(r.identity), codec.loads(r.space), r.state, r.created)
                for r in rows
            )

    def save_space(self, study_id: int, space: Mapping[str, Any]) -> None:
        """Keeps what the search space resolved to, for reports."""
        self._update_study(study_id, space=codec.dumps(space))

    def finals(self, study_id: int) -> dict[str, Any]:
        """What ``save_finals`` kept, empty before."""
        with self._told(), self._engine.connect() as connection:
            row = connection.execute(sa.select(_study.c.finals).where(_study.c.id == study_id)).one()
            return dict(codec.loads(row.finals))

    def save_finals(self, study_id: int, finals: Mapping[str, Any]) -> None:
        """Keeps who meets in the finals, so that a resumed study goes on with the same ones."""
        self._update_study(study_id, finals=codec.dumps(finals))

    def save_state(self, study_id: int, state: str) -> None:
        """``running`` or ``finished``."""
        self._update_study(study_id, state=state)

    def start_trial(
        self,
        study_id: int,
        phase: Phase,
        config: Config,
        why: str,
        owner: str,
        *,
        round_number: int | None = None,
        seed: int | None = None,
    ) -> Trial:
        """A new trial with the next number, running and owned at once."""
        with self._told(), self._engine.begin() as connection:
            _hold(connection, study_id)
            last = connection.execute(
                sa.select(sa.func.max(_trial.c.number)).where(_trial.c.study_id == study_id)
            ).scalar()
            number = 0 if last is None else int(last) + 1
            connection.execute(
                _trial.insert().values(
                    study_id=study_id, number=number, phase=phase.value, config=codec.encode_config(config),
                    why=why, round=round_number, seed=seed,
                    state=TrialState.RUNNING.value, owner=owner, attempts=1, started=time.time(),
                )
            )  # fmt: skip
        return Trial(number, phase, config, why, None, round_number, seed)

    def claim_trial(self, study_id: int, owner: str) -> Trial | None:
        """The waiting trial with the lowest number, now running and owned; None when nothing waits."""
        with self._told(), self._engine.begin() as connection:
            _hold(connection, study_id)
            waiting = (_trial.c.study_id == study_id) & (_trial.c.state == TrialState.WAITING.value)
            row = connection.execute(sa.select(_trial).where(waiting).order_by(_trial.c.number).limit(1)).first()
            if row is None:
                return None
            connection.execute(
                _trial.update()
                .where((_trial.c.study_id == study_id) & (_trial.c.number == row.number))
                .values(
                    state=TrialState.RUNNING.value, owner=owner, attempts=row.attempts + 1, started=time.time()
                )
            )
            return _record(row).trial

    def finish_trial(self, study_id: int, number: int, outcome: Outcome, owner: str | None = None) -> bool:
        """Stores an outcome, once: False where the trial is finished or, given ``owner``, another's by now."""
        open_row = (
            (_trial.c.study_id == study_id)
            & (_trial.c.number == number)
            & (_trial.c.state == TrialState.RUNNING.value)
        )
        if owner is not None:
            open_row &= _trial.c.owner == owner
        values = {
            "state": TrialState.FINISHED.value,
            "outcome": codec.encode_outcome(outcome),
            "finished": time.time(),
        }
        with self._told(), self._engine.begin() as connection:
            return connection.execute(_trial.update().where(open_row).values(**values)).rowcount == 1

    def requeue_trial(self, study_id: int, number: int, *, attempts: int | None = None) -> None:
        """Lets the trial wait to be run again; ``attempts`` resets how often that was tried."""
        values: dict[str, Any] = {"state": TrialState.WAITING.value, "owner": "", "outcome": None, "finished": None}
        if attempts is not None:
            values["attempts"] = attempts
        with self._told(), self._engine.begin() as connection:
            row = (_trial.c.study_id == study_id) & (_trial.c.number == number)
            connection.execute(_trial.update().where(row).values(**values))

    def records(self, study_id: int) -> tuple[TrialRecord, ...]:
        """All trials of a study in order, with state and owner."""
        with self._told(), self._engine.connect() as connection:
            query = sa.select(_trial).where(_trial.c.study_id == study_id).order_by(_trial.c.number)
            return tuple(_record(row) for row in connection.execute(query).all())

    def trials(self, study_id: int) -> tuple[Trial, ...]:
        """The finished trials of a study, in order."""
        return tuple(r.trial for r in self.records(study_id) if r.state is TrialState.FINISHED)

    def orphans(self, study_id: int, alive: Callable[[str], bool]) -> tuple[TrialRecord, ...]:
        """Running trials whose owner isn't alive."""
        running = (r for r in self.records(study_id) if r.state is TrialState.RUNNING)
        return tuple(record for record in running if not alive(record.owner))

    def _update_study(self, study_id: int, **values: Any) -> None:
        with self._told(), self._engine.begin() as connection:
            connection.execute(_study.update().where(_study.c.id == study_id).values(**values))

    def _prepare(self) -> None:
        """Creates the tables, or checks that those there are of a version that this program knows."""
        with self._told(), self._engine.begin() as connection:
            _metadata.create_all(connection)
            version = connection.execute(sa.select(sa.func.max(_schema.c.version))).scalar()
            if version is None:
                connection.execute(_schema.insert().values(version=SCHEMA_VERSION))
            elif version != SCHEMA_VERSION:
                newer = version > SCHEMA_VERSION
                raise StorageError(
                    f"{self._place} was written by {'a newer' if newer else 'an older'} autotune"
                    f" (schema {version}, this one knows {SCHEMA_VERSION})",
                    hint=f"{'upgrade autotune, or ' if newer else ''}start a new study with --new: this one is kept"
                    " beside it, and its best.json stays good",
                )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turns the database's faults into one that names the place and says what mends it."""
        try:
            yield
        except (SQLAlchemyError, OSError) as error:
            raise told(error, self._place) from error
        except ValueError as error:
            raise StorageError(
                f"{self._place} holds something that autotune didn't write: {error}",
                hint="restore the file from a copy, or start a new study with --new",
            ) from error


def prepare_engine(engine: sa.Engine) -> None:
    """Makes SQLite safe for several processes and for power cuts; other databases are left as they are.

    For any engine on a study's database, also Optuna's. ``synchronous=FULL``: a trial costs seconds and a sync
    milliseconds, so nothing is gained by risking the last ones.
    """
    if engine.dialect.name != "sqlite":
        return

    def connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # or pysqlite begins transactions by itself, and too late
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    sa.event.listen(engine, "connect", connect)
    sa.event.listen(engine, "begin", begin)


def told(error: BaseException, place: str) -> StorageError:
    """The fault as a ``StorageError`` with a hint by what the database said."""
    text = str(getattr(error, "orig", None) or error)
    lowered = text.lower()
    for pattern, hint in _HINTS:
        if pattern in lowered:
            return StorageError(f"can't use {place}: {text}", hint=hint)
    return StorageError(f"can't use {place}: {text}", hint="check the folder and the disk, then run the study again")


_HINTS = (
    ("readonly", "make the study's folder and its files writable, or choose another folder"),
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
    connection.execute(sa.select(_study.c.id).where(_study.c.id == study_id).with_for_update())


def _record(row: Any) -> TrialRecord:
    outcome = codec.decode_outcome(row.outcome) if row.outcome is not None else None
    config = codec.decode_config(row.config)
    trial = Trial(row.number, Phase(row.phase), config, row.why, outcome, row.round, row.seed)
    return TrialRecord(trial, TrialState(row.state), row.owner, row.attempts, row.started, row.finished)


def _place(url: str) -> str:
    """The database as people know it: a path, or an address without its password."""
    try:
        parsed = sa.make_url(url)
    except SQLAlchemyError:
        return url.rpartition("@")[2]
    if parsed.get_backend_name() == "sqlite":
        return str(Path(parsed.database)) if parsed.database else "the database in memory"
    return parsed.render_as_string(hide_password=True)
