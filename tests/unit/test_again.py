"""What fails beside other tests is run once more, alone: that, and never the whole suite in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TWO = """
import pathlib
import pytest

def test_that_fails_beside_others():
    assert pathlib.Path("alone").exists()

@pytest.mark.slow
def test_that_is_left_out(): raise AssertionError("it isn't selected")

def test_that_passes(): open("passed", "a").write("x")
"""
DIFFERENT = """
import os
import pytest

@pytest.mark.parametrize("worker", [os.environ.get("PYTEST_XDIST_WORKER", "none")])
def test(worker): pass
"""
# With no other plugin: to import them all takes most of the time.
BARE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
IN_PARALLEL = ("-n", "2", "--dist", "loadfile", "-m", "not slow")
ALONE = ("--last-failed", "--last-failed-no-failures", "none", "-m", "not slow")


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-p", "support.again", *options],
        cwd=folder, env={**os.environ, **BARE, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: s\n")
    return tmp_path


@pytest.mark.slow  # 3 s beside three others
def test_what_has_failed_is_run_again_and_nothing_else(folder: Path) -> None:
    (folder / "test_two.py").write_text(TWO)
    assert run(folder, *IN_PARALLEL).returncode == 1
    assert run(folder, *ALONE).returncode == 1, "it fails alone, too"
    (folder / "alone").touch()
    assert run(folder, *ALONE).returncode == 0
    assert (folder / "passed").read_text() == "x", "in the first run alone"


def test_where_processes_collected_different_tests_none_is_run(folder: Path) -> None:
    """As by a parameter that isn't the same in each of them."""
    (folder / "test_different.py").write_text(DIFFERENT)
    (folder / "test_two.py").write_text(TWO)
    first = run(folder, *IN_PARALLEL)
    assert first.returncode == 1 and "Different tests were collected" in first.stdout
    again = run(folder, *ALONE)
    assert again.returncode == pytest.ExitCode.USAGE_ERROR, again.stdout
    assert "what has failed is none of these tests: gw" in again.stderr
    assert not (folder / "passed").exists()
