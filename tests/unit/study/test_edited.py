"""A script that is edited while its study runs ends it: nothing is measured of two versions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.ran import Ran

from tuner.errors import StudyMismatchError
from tuner.model import Config, Outcome, OutcomeKind, Script
from tuner.study.plan import StudyPlan
from tuner.study.sources import Sources

Edit = Callable[[], object]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script with a module of its own."""
    (tmp_path / "net.py").write_text("LAYERS = 2\n")
    (tmp_path / "train.py").write_text("import net\n")
    return tmp_path / "train.py"


def hash_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def plan(script: Path) -> StudyPlan:
    known = Script(str(script), (), sha256=hash_of(script))
    return worlds.plan(script.parent / "study", selection=("workers", "precision"), script=known, source=script)


def study(script: Path, seen: list[str], edit_at: int = -1, edit: Edit = lambda: None) -> Ran:
    """The study; ``seen`` gets the version of the script and its module that each trial saw."""
    world, module = worlds.World(), script.parent / "net.py"
    modules = {"net.py": hash_of(module)}

    def outcome(config: Config) -> Outcome:
        seen.append(script.read_text() + module.read_text())
        if len(seen) == edit_at:
            edit()
        given = world.outcome(config)
        return replace(given, knowledge=replace(given.knowledge, module_hashes=modules))

    return Ran(plan(script), outcome)


@pytest.mark.parametrize(("name", "at"), [
    ("train.py", 1), ("net.py", 5),
    pytest.param("net.py", 1, marks=pytest.mark.slow), pytest.param("train.py", 16, marks=pytest.mark.slow),
])  # fmt: skip
def test_no_trial_is_run_of_another_version(script: Path, name: str, at: int) -> None:
    """Five is in the search, sixteen in a screen."""
    file, seen = script.parent / name, list[str]()
    before = file.read_text()
    with pytest.raises(StudyMismatchError, match=rf"^edited while the study in .* ran: .*{name}$") as raised:
        study(script, seen, at, lambda: file.write_text(before + "# another version"))
    assert raised.value.hint is not None and "nothing is lost" in raised.value.hint
    assert len(seen) == at and len({*seen}) == 1
    file.write_text(before)
    resumed = study(script, seen)
    assert len({*seen}) == 1
    again = resumed.runner.requests[0]
    assert again.folder.name == f"{at - 1:04d}", "the trial that it was edited in is run again"
    assert resumed.result.improved


def test_a_script_that_is_gone_is_told_as_that(script: Path) -> None:
    """It was said to have been edited, with the hint to undo the edit."""
    with pytest.raises(StudyMismatchError, match=r"^moved or removed while the study in .* ran: .*train.py$") as raised:
        study(script, [], 1, script.unlink)
    assert raised.value.hint is not None and "put it back" in raised.value.hint


@pytest.mark.parametrize("at", [2, 3])
def test_nobody_is_blamed_where_a_failing_script_was_mended_meanwhile(script: Path, at: int) -> None:
    """It is run again to see whose fault its failure is: the version that runs isn't the one that failed."""
    seen: list[int] = []

    def outcome(config: Config) -> Outcome:
        seen.append(1)
        if len(seen) == at:
            script.write_text("import net  # mended")
        if "mended" in script.read_text():
            return worlds.World().outcome(config)
        failed = Outcome(OutcomeKind.USER_ERROR, "script-raised", "ValueError: no", traceback_text="ValueError: no")
        return replace(failed, seconds=1.0)

    with pytest.raises(StudyMismatchError, match=r"^edited while the study in .* ran: .*train.py$"):
        Ran(plan(script), outcome)


def test_a_module_that_is_made_anew_by_each_trial_is_no_edit(script: Path) -> None:
    module = script.parent / "net.py"
    sources = Sources(plan(script))
    modules = {"net.py": hash_of(module)}
    sources.check(modules)
    module.unlink()
    sources.check(modules)


def test_an_edit_that_keeps_the_time_of_the_file_is_one(script: Path) -> None:
    module = script.parent / "net.py"
    modules, sources = {"net.py": hash_of(module)}, Sources(plan(script))
    module.write_text("LAYERS = 3\n")
    os.utime(module, (1e9, 1e9))
    with pytest.raises(StudyMismatchError):
        sources.check(modules)


def test_files_are_read_where_they_changed_only(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Sources(plan(script))
    modules = {"net.py": hash_of(script.parent / "net.py")}
    sources.check(modules)
    monkeypatch.setattr("tuner.study.sources._sha256", lambda file: pytest.fail(f"{file} was read again"))
    sources.check(modules)


def test_a_plan_that_names_no_file_has_none_to_watch(tmp_path: Path) -> None:
    Sources(worlds.plan(tmp_path)).check({"net.py": "1"})

