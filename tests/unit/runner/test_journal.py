"""A trial's records on disk are those that its figures come from."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path


def test_records_that_a_full_disk_takes_a_part_of_are_told(tmp_path: Path) -> None:
    work = """
        import pathlib, resource, sys
        from tuner.runner.journal import Journal
        journal = Journal(pathlib.Path(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # as a disk that has so much left
        journal.feed(b"x" * 150)
    """
    command = [sys.executable, "-c", textwrap.dedent(work), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "OSError: [Errno 27]" in ended.stderr, ended.stderr
    assert (tmp_path / "records.jsonl").stat().st_size == 100
