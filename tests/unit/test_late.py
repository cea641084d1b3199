"""A file of tests that imports a large framework while it is collected fails the run; its tests may import it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
# With no other plugin: to import them all takes most of the time.
BARE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
AT_THE_TOP = """
import support.tf_here
KINDS = [support.tf_here.tf.data]

def test(): pass
"""
WITHIN = """
from support.tf_here import tf

def test(): assert tf.data
"""


def test_a_framework_is_imported_by_a_test_and_not_before(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "tensorflow.py").write_text("data = 1\n")
    (tmp_path / "test_at_the_top.py").write_text(AT_THE_TOP)
    (tmp_path / "test_within.py").write_text(WITHIN)

    def run(*files: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "support.late", "-p", "no:cacheprovider", *files],
            cwd=tmp_path, env={**os.environ, **BARE, "PYTHONPATH": f"{tmp_path}:{TESTS}"}, capture_output=True,
            text=True, timeout=200, check=False,
        )  # fmt: skip

    both = run("test_at_the_top.py", "test_within.py")
    assert both.returncode != 0
    assert "imported while it was collected, before any test uses it: tensorflow" in both.stdout
    assert "ERROR test_at_the_top.py" in both.stdout and "ERROR test_within.py" not in both.stdout
    assert run("test_within.py").returncode == 0
