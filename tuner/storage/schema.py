"""A study's tables, their version, and how those that an earlier version of autotune wrote become these."""

from __future__ import annotations

import json
import re

import sqlalchemy as sa

from tuner.model import Phase, Side

SCHEMA_VERSION = 3
OLDEST_VERSION = 2
"""Older tables can't be migrated: they don't tell the rounds of the finals apart."""

_metadata = sa.MetaData()
_version = sa.Table("autotune_schema", _metadata, sa.Column("version", sa.Integer, nullable=False))
study_table = sa.Table(
    "study", _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(200), nullable=False, unique=True),
    sa.Column("identity", sa.Text, nullable=False),
    sa.Column("space", sa.Text, nullable=False, default="{}"),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("finals", sa.Text, nullable=False, default="{}"),
    sa.Column("created", sa.Float, nullable=False),
)  # fmt: skip
trial_table = sa.Table(
    "trial", _metadata,
    sa.Column("study_id", sa.Integer, sa.ForeignKey("study.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("phase", sa.String(20), nullable=False),
    sa.Column("config", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False, default=""),
    sa.Column("round", sa.Integer),
    sa.Column("seed", sa.Integer),
    sa.Column("group", sa.Text, nullable=False, server_default="[]"),
    sa.Column("samples", sa.BigInteger),
    sa.Column("side", sa.String(20)),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("owner", sa.String(200), nullable=False, default=""),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("outcome", sa.Text),
    sa.Column("started", sa.Float),
    sa.Column("finished", sa.Float),
)  # fmt: skip

_SINCE_3 = ("group", "samples", "side")
_ADVISORY_LOCK = 0x6175746F  # "auto": only other processes of autotune ask for it


def prepare(connection: sa.Connection) -> int:
    """Creates the tables in an empty database. Returns the version of those that are there now."""
    _exclude_others(connection)
    _metadata.create_all(connection)
    version = _stored_version(connection)
    if version is None:
        connection.execute(_version.insert().values(version=SCHEMA_VERSION))
        return SCHEMA_VERSION
    return version


def migrate(connection: sa.Connection) -> None:
    """Brings tables of schema 2 to schema 3; does nothing where another process was first.

    The whole migration is one transaction, the caller's. Raises ``ValueError`` for a trial that schema 2 can't hold.
    """
    _exclude_others(connection)
    if _stored_version(connection) != OLDEST_VERSION:
        return
    for name in _SINCE_3:
        column = sa.schema.CreateColumn(trial_table.c[name]).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE trial ADD COLUMN {column}")
    keys = (trial_table.c.study_id, trial_table.c.number)
    for row in connection.execute(sa.select(*keys, trial_table.c.phase, trial_table.c.why)).all():
        fields = _fields_of(row.phase, row.why)
        if fields:
            this = (trial_table.c.study_id == row.study_id) & (trial_table.c.number == row.number)
            connection.execute(trial_table.update().where(this).values(**fields))
    connection.execute(_version.update().values(version=SCHEMA_VERSION))


def _stored_version(connection: sa.Connection) -> int | None:
    version = connection.execute(sa.select(sa.func.max(_version.c.version))).scalar()
    return None if version is None else int(version)


def _exclude_others(connection: sa.Connection) -> None:
    """One process at a time creates or changes tables; on SQLite the transaction has seen to that already."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))


_FINALS = re.compile(r"finals of (\d+(?:, \d+)*)")
_SCREEN = re.compile(r"screen (?:of trial (\d+) )?over (\d+) samples")
_SIDES = {
    "computing alone": Side.COMPUTE,
    "the loader alone": Side.LOADER,
    "computing half a batch": Side.HALF,
}


def _fields_of(phase: str, why: str) -> dict[str, object]:
    """The columns of schema 3 for a trial of schema 2, which kept them in the words that it was begun with."""
    kind = Phase(phase)
    if kind is Phase.FINALS and (finals := _FINALS.fullmatch(why)):
        return {"group": f"[{finals[1].replace(' ', '')}]"}
    if kind is Phase.SCREEN and (screen := _SCREEN.fullmatch(why)):
        return {"group": json.dumps([int(screen[1])] if screen[1] else []), "samples": int(screen[2])}
    if kind is Phase.PROBE and why in _SIDES:
        return {"side": _SIDES[why].value}
    if kind in (Phase.FINALS, Phase.SCREEN, Phase.PROBE):
        raise ValueError(f"a trial of phase {phase!r} for {why!r}")
    return {}
