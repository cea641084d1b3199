"""Which sources a study holds a script to: those of the user, as they were imported. Real children."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds

from tuner.devices.cpu import cpu_device
from tuner.errors import StudyMismatchError
from tuner.model import BASELINE, Outcome, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest
from tuner.study.sources import Sources

STEPS = """
import tuner
for number in range(9):
    tuner.report(step=number)
    if number == 4 and "edit" in globals():
        edit()
"""


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Outcome]:
    """The script run as a trial, beside two modules of the user's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("LAYERS = 2\n")
    (tmp_path / "made.py").write_text("SIZE = 1\n")

    def run(text: str) -> Outcome:
        (tmp_path / "train.py").write_text(text + STEPS)
        request = TrialRequest(tmp_path / "trial", Script("train.py", ()), cpu_device(), BASELINE)
        return ProcessRunner().run(request, threading.Event())

    return run


def test_the_users_modules_are_known_by_what_they_hold(ran: Callable[[str], Outcome], tmp_path: Path) -> None:
    content = (tmp_path / "net.py").read_bytes()
    assert ran("import net\n").knowledge.module_hashes == {"net.py": hashlib.sha256(content).hexdigest()}


@pytest.mark.parametrize("name", ["made", "anew"])
def test_what_the_script_writes_itself_is_no_source_of_the_users(ran: Callable[[str], Outcome], name: str) -> None:
    """A study that is resumed would take the user's own version for an edit, and autotune run would refuse it."""
    text = f"open('{name}.py', 'w').write('SIZE = 9')\nimport {name}, net\nassert {name}.SIZE == 9\n"
    assert [*ran(text).knowledge.module_hashes] == ["net.py"]


def test_a_module_that_is_edited_while_the_script_runs_is_told(ran: Callable[[str], Outcome], tmp_path: Path) -> None:
    """The trial was one of the version that it had imported, and nobody knows which that was."""
    edit = "subprocess.run(['sh', '-c', 'echo LAYERS = 3 > net.py'], check=True)\n"
    before = ran(f"import subprocess\n{edit}import net\n").knowledge.module_hashes
    assert before == {"net.py": hashlib.sha256(b"LAYERS = 3\n").hexdigest()}, "a program made it, and was through"
    (tmp_path / "net.py").write_text("LAYERS = 2\n")
    known = ran(f"import net, subprocess\ndef edit(): {edit}").knowledge
    assert known.module_hashes == {"net.py": ""}
    script = tmp_path / "train.py"
    sha256 = hashlib.sha256(script.read_bytes()).hexdigest()
    plan = worlds.plan(tmp_path / "study", script=Script(str(script), (), sha256=sha256), source=script)
    with pytest.raises(StudyMismatchError, match=r"edited while .*: net\.py$"):
        Sources(plan).check(known.module_hashes)
    Sources(replace(plan)).check({})
