"""A real study of the version before is listed, checked, resumed and applied as if this version had made it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import old_study

from search_spaces.jax import SPACE as JAX
from search_spaces.keras import SPACE as KERAS
from search_spaces.torch import SPACE as TORCH
from tuner.cli import main
from tuner.devices.cpu import cpu_device
from tuner.errors import StudyMismatchError
from tuner.export import profile as profiles
from tuner.knowledge import Knowledge
from tuner.model import Config, Device, LeftOut, Phase, Trial, Verdict
from tuner.result import StudyResult
from tuner.search.chain import Chain
from tuner.search.structured import StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.storage.studies import read_study
from tuner.study.identity import check_space, space_document
from tuner.study.plan import StudyPlan
from tuner.study.run import run_study
from tuner.study.search_space import NEWER, NEWER_OF, as_begun, without_newer


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    """The folder that holds the study that ended and the one that was killed."""
    return old_study.unpack(tmp_path)


@pytest.fixture
def whole(studies: Path, tmp_path: Path) -> tuple[Trial, ...]:
    """All trials of the study that ended, read from a copy."""
    copy = shutil.copytree(studies / "finished", tmp_path / "copy")
    return read_study(copy).trials


def resume(plan: StudyPlan, runner: old_study.RecordedRunner) -> StudyResult:
    sampler = Chain(StructuredSampler(), TpeSampler(plan.seed))
    return run_study(plan, runner, sampler, lambda event: None, threading.Event())


def stop_at(folder: Path, number: int) -> None:
    """Makes a study of schema 2 that ended one that was killed as trial ``number``, before its finals, was run."""
    with sqlite3.connect(folder / "study.db") as connection:
        connection.execute("DELETE FROM trial WHERE number > ?", (number,))
        connection.execute(
            "UPDATE trial SET state = 'running', outcome = NULL, finished = NULL WHERE number = ?", (number,)
        )
        connection.execute("UPDATE study SET state = 'running', finals = '{}'")
    connection.close()
    shutil.rmtree(folder / "trials")


def counted(trials: tuple[Trial, ...]) -> Counter[tuple[object, ...]]:
    return Counter(old_study.key(trial) for trial in trials)


def test_a_study_that_ended_derives_its_result_again_without_running_a_trial(studies: Path) -> None:
    folder = studies / "finished"
    runner = old_study.RecordedRunner(folder, ())
    result = resume(old_study.plan(folder), runner)
    assert runner.ran == []
    assert len(result.trials) == old_study.TRIALS
    (proven,) = json.loads((folder / "best.json").read_bytes())["profiles"]
    assert result.winner is not None
    assert result.winner.verdict is Verdict.KEEP_BASELINE
    assert dict(result.winner.config) == proven["candidate"]["config"]
    speedup = result.winner.speedup
    told = proven["candidate"]["speedup"]
    assert (speedup.ratio, speedup.low, speedup.high) == pytest.approx((told["ratio"], told["low"], told["high"]))
    assert [(screened.config, str(screened.verdict)) for screened in result.screened] == [
        (Config(precision="bf16", threads=1), "pass"), (Config(optimizer="foreach", threads=1), "pass"),
    ]  # fmt: skip
    assert result.bottleneck is not None and str(result.bottleneck.bound) == "compute-bound"


def test_one_that_was_killed_in_its_finals_goes_on_with_the_runs_that_are_missing(
    studies: Path, whole: tuple[Trial, ...]
) -> None:
    folder = studies / "stopped"
    runner = old_study.RecordedRunner(folder, whole)
    result = resume(old_study.plan(folder, spare_cores=2), runner)
    assert runner.ran[0].number == 20, "the one that was interrupted comes first"
    assert {trial.phase for trial in runner.ran} == {Phase.FINALS}
    assert counted(tuple(runner.ran)) == counted(whole[20:]), "none was run twice"
    assert counted(result.trials) == counted(whole)


@pytest.mark.parametrize("number", [8, *(pytest.param(number, marks=pytest.mark.slow) for number in (13, 16))])
def test_one_that_was_killed_in_its_screens_shares_the_runs_of_the_baseline(
    studies: Path, whole: tuple[Trial, ...], number: int
) -> None:
    folder = studies / "finished"
    stop_at(folder, number)
    runner = old_study.RecordedRunner(folder, whole)
    result = resume(old_study.plan(folder, spare_cores=2, most_rounds=5), runner)
    left = tuple(trial for trial in whole[number:] if (trial.round or 0) <= 5)
    assert counted(tuple(runner.ran)) == counted(left)
    assert counted(result.trials) == counted((*whole[:number], *left))
    assert {frozenset(trial.group) for trial in result.trials if trial.phase is Phase.FINALS} == {frozenset((5, 6, 7))}


@pytest.mark.parametrize("number", [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3))])
def test_one_that_was_killed_in_its_probe_runs_the_sides_that_are_missing(
    studies: Path, whole: tuple[Trial, ...], number: int
) -> None:
    folder = studies / "finished"
    stop_at(folder, number)
    runner = old_study.RecordedRunner(folder, whole)
    # Without a search: this version goes by the probe in another way than the one that was recorded.
    result = resume(old_study.plan(folder, spare_cores=2, trials=1), runner)
    sides = [trial.side for trial in runner.ran if trial.phase is Phase.PROBE]
    assert sides == [trial.side for trial in whole[number:4]]
    assert result.bottleneck is not None and str(result.bottleneck.bound) == "compute-bound"


def test_another_script_is_no_resumption(studies: Path) -> None:
    plan = old_study.plan(studies / "finished", cores=3)
    with pytest.raises(StudyMismatchError, match=r"device\.cores: 2 → 3"):
        resume(plan, old_study.RecordedRunner(plan.folder, ()))


def test_it_is_listed_and_checked(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(studies / "finished")

    def printed(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    table = printed("trials", folder).splitlines()
    assert len([line for line in table if line.split()[:1] and line.split()[0].isdigit()]) == old_study.TRIALS
    assert "computing half a batch" in table[4]
    assert "compute-bound" in table[old_study.TRIALS + 1]
    documents = json.loads(printed("trials", folder, "--json"))
    assert [document["number"] for document in documents] == list(range(old_study.TRIALS))
    assert documents[17]["gain"] == 1.0 and documents[18]["gain"] > 1.0, "runs of one round are held against each other"
    assert f"all figures of {old_study.TRIALS} trials follow" in printed("trials", folder, "--check")
    listed = {row["folder"]: row for row in json.loads(printed("studies", str(studies), "--json"))}
    assert {Path(name).name: row["state"] for name, row in listed.items()} == {
        "finished": "finished", "stopped": "stopped",
    }  # fmt: skip


def test_its_profile_is_read(studies: Path, write_script: Callable[..., Path]) -> None:
    from tuner.cli.chosen_profile import knowledge_of

    place = studies / "finished" / "best.json"
    (profile,) = profiles.read(place.read_bytes(), str(place))
    device = Device("cpu", 0, "AMD EPYC", "AMD EPYC", 0)
    assert profiles.choose([profile], device, 4, str(place)) == profile
    assert profile.script.argv == ("--width={width=256|128}",)
    knowledge = knowledge_of(profile, profile.script, str(place))
    assert knowledge.training_loaders == ("train.py:14#0",)


def test_one_on_one_core_that_had_no_more_workers_to_try_goes_on() -> None:
    known = Known(cpu_device(), 1, knowledge=Knowledge(as_written={"workers": 1, "steps_per_execution": 1}))
    present = resolve(KERAS, known)
    earlier = replace(
        present, axes=tuple(axis for axis in present.axes if axis.knob.name != "workers"),
        left_out={**present.left_out, "workers": LeftOut("only one value makes sense here: 1")},
    )  # fmt: skip
    stored = space_document(earlier)
    with pytest.raises(StudyMismatchError):
        check_space(stored, present, "folder")
    goes_on = as_begun(present, stored["values"])
    check_space(stored, goes_on, "folder")
    assert space_document(goes_on) == stored
    assert as_begun(present, space_document(present)["values"]) == present


def test_a_knob_that_came_later_is_no_other_space_and_a_users_own_is() -> None:
    known = Known(cpu_device(), 2, knowledge=Knowledge(as_written={"threads": 2, "mine": 1}))
    earlier = replace(TORCH, knobs=tuple(knob for knob in TORCH.knobs if knob.name not in NEWER))
    assert len(earlier.knobs) < len(TORCH.knobs)
    stored = space_document(resolve(earlier, known))
    check_space(stored, resolve(without_newer(TORCH, stored["knobs"]), known), "folder")
    assert without_newer(TORCH, ()) == TORCH, "a study that begins has them all"
    assert without_newer(TORCH, space_document(resolve(TORCH, known))["knobs"]) == TORCH
    own = replace(TORCH, knobs=(*TORCH.knobs, replace(TORCH.knobs[0], name="mine")))
    with pytest.raises(StudyMismatchError, match="mine"):
        check_space(stored, resolve(without_newer(own, stored["knobs"]), known), "folder")


def test_a_knob_that_a_space_has_got_from_another_one_is_newer_there_alone() -> None:
    known = Known(cpu_device(), 2, knowledge=Knowledge(as_written={"threads": 2}))
    earlier = replace(JAX, knobs=tuple(knob for knob in JAX.knobs if knob.name not in NEWER_OF["jax"]))
    stored = space_document(resolve(earlier, known))
    assert "num_workers" in {knob.name for knob in JAX.knobs} - {knob.name for knob in earlier.knobs}
    check_space(stored, resolve(without_newer(JAX, stored["knobs"]), known), "folder")
    begun_without = replace(TORCH, knobs=tuple(knob for knob in TORCH.knobs if knob.name != "num_workers"))
    stored = space_document(resolve(begun_without, known))
    assert "num_workers" in {knob.name for knob in without_newer(TORCH, stored["knobs"]).knobs}


def test_one_whose_values_were_in_another_order_goes_on_in_that_order() -> None:
    known = Known(cpu_device(), 2, knowledge=Knowledge(as_written={"optimizer": "default"}))
    known = replace(known, knowledge=replace(known.knowledge, optimizer_choices=("foreach", "fused")))
    present = resolve(TORCH, known, selection=("optimizer",))
    assert [axis.values for axis in present.axes] == [("default", "fused", "foreach")]
    begun_with = {"optimizer": ["foreach", "default", "fused"]}
    (axis,) = as_begun(present, begun_with).axes
    assert (axis.values, axis.as_written) == (("foreach", "default", "fused"), 1)
    assert as_begun(present, {"optimizer": ["default", "fused"]}) == present
