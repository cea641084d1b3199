"""A file format is a class and an entry in a list: shown with one that tuner/ knows nothing of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import made_up, worlds

from tuner.cli import main, study
from tuner.cli.study import check_targets, write_files
from tuner.errors import ProfileError
from tuner.export import EXPORTERS, PROFILE
from tuner.export.base import Exporter
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner

SPACE = """
    from tuner.space import Knob, SearchSpace
    SPACE = SearchSpace("made-up", "none", (Knob("workers", lambda known: [0, 1, 2], "workers", ordered=True),))
"""


class Markdown:
    """A made-up exporter: a line a study, the newest last."""

    name = "diary"
    file_name = "diary.md"

    def check(self, existing: bytes, place: str) -> None:
        if not existing.startswith(b"#"):
            raise ProfileError(f"{place} is not a diary")

    def serialize(self, result: StudyResult, existing: bytes | None) -> bytes | None:
        if result.best is None:
            return None
        return (existing or b"# studies\n") + f"- {result.study.name}: {len(result.trials)} trials\n".encode()


MADE_UP: Exporter = Markdown()


@pytest.fixture
def studied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[..., None]) -> Callable[[], int]:
    """Runs ``autotune study`` on a made-up machine, with the made-up exporter behind those that are built in."""
    install("made_up_space", SPACE, search_spaces="made-up = made_up_space:SPACE")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "EXPORTERS", (*EXPORTERS, MADE_UP))
    monkeypatch.setattr(study, "ProcessRunner", lambda: ReplayRunner(worlds.World().outcome))
    Path("train.py").write_text("")
    return lambda: main(
        ["study", "train.py", "--device", "cpu", "--space", "made-up", "--study", "s", "--trials", "3", "--no-probe"]
    )


def test_a_profile_says_where_its_single_trials_are_no_more_than_a_hint() -> None:
    """The summary said so, and whoever read the file alone took the gain of the candidate for one."""
    open_ = replace(made_up.RESULT, winner=None, baseline_disturbed="8.0 cores of others")
    assert json.loads(PROFILE.serialize(open_, None) or b"")["profiles"][0]["doubt"].endswith("8.0 cores of others")
    for result in (replace(open_, baseline_disturbed=""), replace(made_up.RESULT, baseline_disturbed="8.0 cores")):
        assert json.loads(PROFILE.serialize(result, None) or b"")["profiles"][0]["doubt"] == ""


def test_an_exporter_in_the_list_has_its_file_written_and_named(
    studied: Callable[[], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert studied() == 0
    assert Path("s/diary.md").read_text() == f"# studies\n- {tmp_path.name}-train-cpu: 16 trials\n"
    assert json.loads(Path("s/best.json").read_text())["schema"] == 1
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["result", "s/best.json"] in shown and ["diary", "s/diary.md"] in shown
    assert studied() == 0, "and a study that goes on adds to it"
    assert Path("s/diary.md").read_text().count("-train-cpu: ") == 2


@pytest.mark.parametrize("file", ["diary.md", "best.json"])
def test_a_target_that_cannot_be_added_to_is_refused_before_the_first_trial(
    studied: Callable[[], int], file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("s").mkdir()
    Path("s", file).write_text("what somebody else wrote")
    assert studied() == 2
    assert f"s/{file} is not a " in capsys.readouterr().err
    assert [path.name for path in Path("s").iterdir()] == [file], "a trial was run, or its study was made"


def test_a_file_of_which_the_result_says_nothing_is_not_made(tmp_path: Path) -> None:
    empty = replace(made_up.RESULT, best=None, winner=None, study=replace(made_up.STUDY, folder=str(tmp_path)))
    assert write_files(empty, (*EXPORTERS, MADE_UP)) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_proof_is_kept_where_a_study_has_none_of_its_own(tmp_path: Path) -> None:
    proven = replace(made_up.RESULT, study=replace(made_up.STUDY, folder=str(tmp_path)))
    path = tmp_path / PROFILE.file_name
    assert write_files(proven, EXPORTERS) == {"result": str(path)}
    before = path.read_bytes()
    check_targets(tmp_path, EXPORTERS)
    assert write_files(replace(proven, winner=None), EXPORTERS) == {"result": str(path)}
    assert path.read_bytes() == before
