"""Which profile of a best.json is told as a study's result."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import made_up, worlds
from support.life_of_finals import UNSCREENED

from tuner.analysis.learning import LATER
from tuner.cli import main
from tuner.errors import ExitCode, ProfileError
from tuner.export import PROFILE
from tuner.export.profile import merged, profile_of, read
from tuner.model import Verdict
from tuner.report.summary import summary
from tuner.result import StudyFacts, StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study


def studied(folder: Path, **changes: Any) -> StudyResult:
    """A study that proves bf16, without its best.json."""
    plan = worlds.plan(folder, trials=3, selection=("precision",), accuracy=UNSCREENED, **changes)
    runner = ReplayRunner(lambda config: worlds.measured(200.0 if config == {"precision": "bf16"} else 100.0))
    return run_study(plan, runner, StructuredSampler(), lambda event: None, threading.Event())


def fewer_cores(study: StudyFacts) -> StudyFacts:
    return replace(study, cores=2)


def in_ranks(study: StudyFacts) -> StudyFacts:
    return replace(study, ranks=2)


def test_an_answer_is_told_where_its_file_cant_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A study whose best.json found no place on the disk ended with that error alone."""
    result = studied(tmp_path / "s")
    monkeypatch.setattr("tuner.cli.study.run_study", lambda *words: result)
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("s", PROFILE.file_name).mkdir()
    assert main(["study", "train.py", "--device", "cpu", "--study", "s"]) == ExitCode.STORAGE
    told = capsys.readouterr()
    assert told.out.startswith("faster: precision=bf16\n") and "best.json" not in told.out
    assert told.err.startswith(f"error: can't write {tmp_path / 's' / PROFILE.file_name}")


@pytest.mark.parametrize("elsewhere", [fewer_cores, in_ranks])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_study_is_told_with_the_result_of_as_many_cores_and_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], elsewhere: Callable[[StudyFacts], StudyFacts], is_last: bool
) -> None:
    """A best.json holds those of other machines of the same name, too: the first one was taken for the study's."""
    own = studied(tmp_path)
    assert own.improved
    # There nothing was proven.
    other = replace(own, winner=None, study=elsewhere(own.study))
    content: bytes | None = None
    for result in (own, other) if is_last else (other, own):
        content = merged(content, profile_of(result), "best.json")
    assert content is not None and len(json.loads(content)["profiles"]) == 2
    (tmp_path / PROFILE.file_name).write_bytes(content)
    assert main(["studies", str(tmp_path), "--json"]) == 0
    [document] = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["config"]) == ("improved", {"precision": "bf16"})


def test_of_two_devices_of_one_name_the_last_result_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A study may go on on another card of the same model, whose entry stands behind the first one's."""
    first = studied(tmp_path, device=worlds.device("GPU-1"))
    last = replace(first, winner=None, study=replace(first.study, device=worlds.device("GPU-2")))
    content = merged(merged(None, profile_of(first), "best.json"), profile_of(last), "best.json")
    assert len(json.loads(content)["profiles"]) == 2
    (tmp_path / PROFILE.file_name).write_bytes(content)
    assert main(["studies", str(tmp_path), "--json"]) == 0
    [document] = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "keep-baseline"


@pytest.mark.parametrize(
    ("disturbed", "label", "told"),
    [(0, "", "keep your config"), (2, "", "can't tell"), (2, LATER, "keep your config")],
)
def test_every_verb_answers_as_the_summary_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], disturbed: int, label: str, told: str
) -> None:
    """Of a search that others disturbed they said to keep the config, where the summary can't tell."""
    own = studied(tmp_path)
    assert own.winner is not None
    judged = replace(own.winner, verdict=Verdict.KEEP_BASELINE, label=label)
    result = replace(own, winner=judged, disturbed=disturbed)
    (tmp_path / PROFILE.file_name).write_bytes(merged(None, profile_of(result), "best.json"))
    assert summary(result, {}, "").startswith(f"{told}: ")
    best = str(tmp_path / PROFILE.file_name)
    for verb in (["studies", str(tmp_path)], ["compare", best], ["merge", best, "--out", str(tmp_path / "fleet.json")]):
        assert main(verb) == 0
        said = capsys.readouterr().out
        assert told in said and len([line for line in ("can't tell", "keep your config") if line in said]) == 1, verb


def test_a_hint_is_told_as_nothing_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = replace(studied(tmp_path), winner=None, disturbed=2)
    assert result.best is not None and result.best.config and summary(result, {}, "").startswith("not proven: ")
    (tmp_path / PROFILE.file_name).write_bytes(merged(None, profile_of(result), "best.json"))
    assert main(["studies", str(tmp_path)]) == 0
    assert "nothing proven" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("winner", "disturbed", "told"),
    [
        ("none", 0, "nothing proven that keeps the effective batch"), ("keep", 0, "keep your config"),
        ("keep", 2, "can't tell: other processes or the hypervisor disturbed 2 of the 2 trials of the search"),
        ("improved", 0, "2.00x with precision=bf16"),
    ],
)  # fmt: skip
def test_a_larger_batch_that_is_proven_is_told_beside_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], winner: str, disturbed: int, told: str
) -> None:
    """autotune studies said "nothing proven" of a study that had proven one, and can't-tell stood alone above it."""
    own = studied(tmp_path)
    assert own.winner is not None
    kept = replace(own.winner, verdict=Verdict.KEEP_BASELINE)
    judged = {"none": None, "keep": kept, "improved": own.winner}[winner]
    result = replace(own, winner=judged, disturbed=disturbed, larger=made_up.WITH_LARGER.larger)
    best = tmp_path / PROFILE.file_name
    best.write_bytes(merged(None, profile_of(result), "best.json"))
    larger = "larger batches (tier 3): num_workers=2 batch_size=128 lr_scale=4.0"
    assert main(["studies", str(tmp_path)]) == 0
    assert f"{told}; {larger}" in " ".join(capsys.readouterr().out.split()), "however its lines are broken"
    assert main(["merge", str(best), "--out", str(tmp_path / "fleet.json")]) == 0
    assert f"; {larger} (" in capsys.readouterr().out
    assert main(["studies", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["tier3"] == dict(made_up.LARGER_CONFIG)
    headline = summary(result, {}, "").splitlines()[0]
    assert winner == "improved" or "larger batches (tier 3)" in headline


def test_a_profile_whose_answer_is_no_text_is_refused(tmp_path: Path) -> None:
    profile = {**profile_of(studied(tmp_path)), "cannot_tell": 3}
    with pytest.raises(ProfileError, match="cannot_tell is 3, not a text"):
        read(merged(None, profile, "best.json"), "best.json")
