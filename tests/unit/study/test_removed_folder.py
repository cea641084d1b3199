"""A study whose folder is removed while it runs: it ends with that, and makes no other one."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds

from tuner.child.records import Window
from tuner.errors import StorageError
from tuner.knowledge import Knowledge
from tuner.model import Config, Outcome, Phase, Trial
from tuner.runner.replay import ReplayRunner
from tuner.search.structured import StructuredSampler
from tuner.study.execution import TrialExecutor
from tuner.study.run import run_study


def disturbed() -> Outcome:
    outcome = worlds.measured(500)
    assert outcome.measurement is not None
    return replace(outcome, measurement=replace(outcome.measurement, foreign_cpus=1.5))


@pytest.mark.parametrize("outcome", [lambda: worlds.measured(100.0), disturbed], ids=["calm", "to be run again"])
@pytest.mark.parametrize("trial", [1, 2])
def test_a_study_whose_folder_is_removed_leaves_none_behind(
    tmp_path: Path, outcome: Callable[[], Outcome], trial: int
) -> None:
    plan, runs = worlds.plan(tmp_path / "study", trials=3), list[Config]()

    def removing(config: Config) -> Outcome:
        runs.append(config)
        if len(runs) == trial:
            shutil.rmtree(plan.folder)
        return outcome()

    with pytest.raises(StorageError, match="removed while it was in use"):
        run_study(plan, ReplayRunner(removing), StructuredSampler(), lambda event: None, threading.Event())
    assert len(runs) == trial and not plan.folder.exists()


def test_a_place_that_is_taken_beside_a_trial_is_no_bug_of_ours(tmp_path: Path) -> None:
    """What another program does in the study's folder, or a full disk, as its folders are moved."""

    def in_the_way(config: Config) -> Outcome:
        (plan.folder / "trials" / "0001.disturbed").write_text("")
        return disturbed()

    plan = worlds.plan(tmp_path / "study")
    plan.folder.mkdir()
    executor = TrialExecutor(plan, ReplayRunner(in_the_way), stop=threading.Event(), note=lambda text: None)
    with pytest.raises(StorageError, match="0001"):
        executor.execute(Trial(1, Phase.FINALS, Config()), Knowledge(), Window(), time_for=lambda seconds: True)
