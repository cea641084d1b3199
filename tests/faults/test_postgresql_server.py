"""The tests' PostgreSQL server ends with them, also where they are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
KILLED = """
import os, signal
def test(postgresql_url):
    from sqlalchemy import create_engine, text
    with create_engine(postgresql_url).connect() as connection:
        data = connection.execute(text("show data_directory")).scalar()
    open("told", "w").write(data)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow  # 6 s beside three others
def test_a_killed_run_leaves_no_server(tmp_path: Path) -> None:
    (tmp_path / "test_killed.py").write_text(KILLED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "support.postgresql", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == -9, ran.stdout + ran.stderr
    data = Path((tmp_path / "told").read_text())
    deadline = time.monotonic() + 30
    while _servers(data) or data.parent.exists():
        assert time.monotonic() < deadline, (_servers(data), data)
        time.sleep(0.05)


def _servers(data: Path) -> list[str]:
    """Processes that were started on this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended meanwhile
        if str(data) in command:
            found.append(command)
    return found
