"""The store of trials: what a process that died left is held against the limits of now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds

from tuner.model import BASELINE, Config, OutcomeKind, Phase
from tuner.runner.request import Limits
from tuner.storage.atomic import write_durably
from tuner.storage.codec import encode_outcome
from tuner.storage.database import NewTrial, Repository
from tuner.storage.folder import OUTCOME, trial_folder
from tuner.study.trials import TrialStore


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
