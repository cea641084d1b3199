"""`make check-cuda` where there is little beside PyTorch: what it runs can be collected, and it always says what came.

No card is needed: nothing of what is collected is run.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import check_cuda
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Imports as on a machine that has these distributions only, whatever is installed here.
ONLY = """
import importlib.abc, importlib.metadata, re, sys

ALLOWED = set(ALLOWED_NAMES)
LACKING = {
    module for module, owners in importlib.metadata.packages_distributions().items()
    if not any(re.sub(r"[-_.]+", "-", owner).lower() in ALLOWED for owner in owners)
}

class Lacking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LACKING:
            raise ModuleNotFoundError(f"No module named {name!r} (not declared by check_cuda)", name=name)

sys.meta_path.insert(0, Lacking())
"""


FILES = (
    {"tests/end_to_end/test_cuda.py", "tests/end_to_end/test_fp16.py"},
    {"tests/end_to_end/test_cuda.py", "tests/end_to_end/test_jax_cuda.py"},
)
"""Some of those whose tests run at once, and of those whose tests run alone."""


def closure(requirements: list[str]) -> set[str]:
    """Names of the distributions that these requirements bring along."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        try:
            waiting += [Requirement(each) for each in importlib.metadata.requires(name) or ()]
        except importlib.metadata.PackageNotFoundError:
            pass  # of another platform
    return found


def collected(command: list[str], **environment: str) -> tuple[set[str], str]:
    """The tests that the command would run, and all that it prints."""
    done = subprocess.run(
        [*command, "--collect-only", "-p", "no:cacheprovider"], cwd=check_cuda.ROOT, capture_output=True, text=True,
        env={**os.environ, **environment}, timeout=200, check=False,
    )  # fmt: skip
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return {line for line in done.stdout.splitlines() if "::" in line}, output


@pytest.mark.slow  # it collects all of them four times
def test_every_test_of_a_card_is_collected_where_nothing_but_its_requirements_is_installed(tmp_path: Path) -> None:
    names = closure([*check_cuda.requirements(), "torch", "autotune-study"])
    assert "hypothesis" not in names and "pytest" in names and "torch" in names
    (tmp_path / "sitecustomize.py").write_text(ONLY.replace("ALLOWED_NAMES", repr(sorted(names))))
    for command, files in zip(check_cuda.tests_commands(Path(sys.executable), tmp_path).values(), FILES, strict=True):
        # Plugins are found by their entry points, which a package that can't be imported has here.
        bare = [*command, "-p", "pytest_timeout", "-p", "xdist"]
        there, _ = collected(bare, PYTHONPATH=str(tmp_path), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        whole, output = collected(command)
        assert there == whole, output
        assert files <= {test.partition("::")[0] for test in whole}


def test_no_mark_escapes_the_search_for_marked_files() -> None:
    """Files are chosen by their text: a mark that is made elsewhere and imported would be missed."""
    tests = check_cuda.ROOT / "tests"
    marking = {path for path in tests.rglob("*.py") if "mark.cuda" in path.read_text("utf-8")}
    assert {path for path in marking if not path.name.startswith("test_")} == {tests / "benchmarks/check_cuda.py"}


@pytest.mark.slow  # a command for a machine with a card
def test_without_a_card_it_says_so_in_a_line_and_in_its_file(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, check_cuda.__file__, "--out", str(out)]
    # Where there is a card it isn't seen.
    done = subprocess.run(
        command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    result = json.loads(out.read_text("utf-8"))
    assert result["verdict"].endswith("sees no CUDA card here") and result["machine"]["cards"] == []
    assert done.stdout == f"{result['verdict']}: {out}\n"


def test_the_line_says_what_each_study_found() -> None:
    """A study that finds nothing has a verdict as well: whoever reads the line alone should see which."""
    improved = {"verdict": "improved", "speedup": {"ratio": 1.5, "low": 1.25, "high": 2.0}}
    studies = {"a": {"profile": improved}, "b": {"profile": {"verdict": "keep-baseline", "speedup": None}}}
    result = {"tests": {"failed": 0, "outcomes": {"x": "passed"}}, "studies": studies}
    assert check_cuda.came_to(result) == (0, "passed (a: improved 1.50x [1.25, 2.00]; b: keep-baseline)")
    result = {"tests": {"failed": 1, "outcomes": {}}, "studies": {"a": {"profile": None}}}
    assert check_cuda.came_to(result) == (1, "FAILED (1 of 1 tests; a: no verdict)")
