"""Plugin: studies of the tests' own process, on made-up machines, of which nothing has to outlive a power cut.

A study syncs each of its steps to the disk, which takes milliseconds each. What that is for is shown where processes
are killed (tests/faults) and files are written (tests/unit/storage).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FOLDERS = frozenset(TESTS / name for name in ("golden", "unit/export", "unit/report", "unit/study"))


@pytest.fixture(autouse=True)
def undurable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In these folders nothing waits for the disk."""
    if request.path.parent not in FOLDERS:
        return
    import sqlalchemy as sa

    from tuner.storage import database

    prepare_engine = database.prepare_engine

    def prepare(engine: sa.Engine) -> None:
        prepare_engine(engine)
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))

    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(database, "prepare_engine", prepare)
