"""The store of trials: what a process that died left is held against the limits of now."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds

from tuner.child import wire
from tuner.child.records import ChildRequest
from tuner.model import BASELINE, TOOK_THE_STUDY_DOWN, Config, Outcome, OutcomeKind, Phase
from tuner.runner.request import Limits
from tuner.storage.atomic import write_durably
from tuner.storage.codec import encode_outcome
from tuner.storage.database import NewTrial, Repository
from tuner.storage.folder import OUTCOME, trial_folder
from tuner.study.baseline import baseline_error
from tuner.study.trials import MOST_STARTS, TrialStore


@pytest.mark.parametrize("config", [BASELINE, Config(workers=4)], ids=["baseline", "config"])
def test_a_recovered_trial_is_held_against_tighter_limits(tmp_path: Path, config: Config) -> None:
    repository = Repository(f"sqlite:///{tmp_path / 'study.db'}")
    study = repository.create_study("s", {}).id
    trial = TrialStore(worlds.plan(tmp_path), repository, study).begin(NewTrial(Phase.SEARCH, config))
    outcome = worlds.measured(100.0)
    assert outcome.measurement is not None
    outcome = replace(outcome, measurement=replace(outcome.measurement, peak_host_bytes=2_000))
    folder = trial_folder(tmp_path, trial.number)
    folder.mkdir(parents=True)
    write_durably(folder / OUTCOME, encode_outcome(outcome).encode())  # and there the process died
    store = TrialStore(worlds.plan(tmp_path, limits=Limits(max_host_bytes=1_000)), repository, study)
    store.recover()
    [recovered] = store.trials
    assert recovered.outcome is not None
    assert recovered.outcome.kind is (OutcomeKind.INFEASIBLE if config else OutcomeKind.COMPLETE)
    [stored] = repository.trials(study)
    assert stored.outcome is not None and stored.outcome.complete, "a looser limit lets it count again"
    repository.close()


@pytest.mark.parametrize("place", ["standing/0000", "checks/plain-Python"])
def test_what_stands_after_a_kill_keeps_no_secret_and_nothing_among_the_users_files(tmp_path: Path, place: str) -> None:
    """The script as written, which is no trial of its own."""
    plan = worlds.plan(tmp_path / "study")
    standing = plan.folder / place
    standing.mkdir(parents=True)
    given = ChildRequest(argv=("--api-key=hunter2SECRET", "--epochs=3"))
    (standing / "request.json").write_text(wire.encode_request(given))
    made = tmp_path / "results.txt"
    made.write_text("of a training that was killed")
    note = {"made": str(made), "folder": False, "after_first_step": True}
    (standing / "made.jsonl").write_text(json.dumps(note) + "\n")
    repository = Repository(plan.url)
    try:
        store = TrialStore(plan, repository, repository.create_study("made-up", {}).id)
        store.recover()
    finally:
        repository.close()
    assert "hunter2SECRET" not in (standing / "request.json").read_text()
    assert "--epochs=3" in (standing / "request.json").read_text()
    assert not made.exists()


def test_a_run_of_the_finals_waits_for_its_round(tmp_path: Path) -> None:
    plan = worlds.plan(tmp_path / "study")
    plan.folder.mkdir(parents=True)
    repository = Repository(plan.url)
    try:
        store = TrialStore(plan, repository, repository.create_study("made-up", {}).id)
        run = store.begin(NewTrial(Phase.FINALS, Config(workers=2), round=1, group=(1,)))
        store.requeue(run)
        assert store.claim() is None
        claimed = store.claim(finals=True)
        assert claimed is not None and claimed.number == run.number
    finally:
        repository.close()


def test_runs_of_a_round_that_ran_at_once_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of them, stored one after the other, after a trial of the search by itself."""
    now = [1000.0]
    monkeypatch.setattr("tuner.storage.database.time.time", lambda: now[0])
    repository = Repository(f"sqlite:///{tmp_path / 'study.db'}")
    plan = worlds.plan(tmp_path / "study")
    plan.folder.mkdir()
    store = TrialStore(plan, repository, repository.create_study("made-up", {}).id)
    alone = store.begin(NewTrial(Phase.SEARCH, Config(workers=4)))
    now[0] += 10.0
    store.finish(alone, worlds.measured(100.0))
    now[0] += 5.0  # the study's own, or a pause: no trial ran
    configs = (BASELINE, Config(workers=2), Config(workers=4))
    runs = [store.begin(NewTrial(Phase.FINALS, config, round=1)) for config in configs]
    for run in runs:
        now[0] += 7.0
        store.finish(run, worlds.measured(100.0))
    assert store.spent_s() == 10.0 + 3 * 7.0
    repository.close()


@pytest.mark.parametrize("has_outcome", [True, False])
def test_the_pause_before_a_trial_is_recovered_is_no_time_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_outcome: bool
) -> None:
    """Of a full disk, freed after lunch, and of a trial that took the machine down until somebody came back the whole
    pause counted: the study resumed with its budget used up.
    """
    now = [1000.0]
    monkeypatch.setattr("tuner.storage.database.time.time", lambda: now[0])
    repository = Repository(f"sqlite:///{tmp_path / 'study.db'}")
    store = TrialStore(worlds.plan(tmp_path), repository, repository.create_study("made-up", {}).id)
    trial = store.begin(NewTrial(Phase.SEARCH, Config(workers=4)))
    for _ in range(0 if has_outcome else MOST_STARTS - 1):
        now[0] += 7200.0
        store.recover()
        assert store.claim() == trial
    folder = trial_folder(tmp_path, trial.number)
    folder.mkdir(parents=True)
    file = folder / (OUTCOME if has_outcome else "log.txt")
    file.write_text(encode_outcome(worlds.measured(100.0)) if has_outcome else "and there it died")
    os.utime(file, (now[0] + 7.0, now[0] + 7.0))
    now[0] += 7200.0
    store.recover()
    [recovered] = store.trials
    assert recovered.outcome is not None
    assert recovered.outcome.reason == ("" if has_outcome else TOOK_THE_STUDY_DOWN)
    assert store.spent_s() == 7.0
    repository.close()


def test_a_script_as_written_that_every_study_dies_with_is_told_what_to_do(tmp_path: Path) -> None:
    """The hint was to see a log, in which nothing stands of a study that was killed from outside."""
    detail = "the study was killed 3 times while it ran"
    error = baseline_error(Outcome(OutcomeKind.CRASHED, TOOK_THE_STUDY_DOWN, detail), tmp_path)
    assert error.message == detail and error.hint is not None and "same command tries it anew" in error.hint
