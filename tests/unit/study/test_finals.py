"""Finals over the life of a study: which are new ones, and what stands of earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support import worlds
from support.ran import Ran

from tuner.analysis.accuracy import AccuracyLimits
from tuner.model import Config, Outcome, Phase, Trial, Verdict
from tuner.storage.database import Repository
from tuner.study.plan import StudyPlan

UNSCREENED = AccuracyLimits(max_loss_increase=None)


def speeds(*, lucky: int = -1) -> Callable[[Config], Outcome]:
    """bf16 is twice as fast and nothing else helps; the single run of number ``lucky`` is five times as fast."""
    runs: list[Config] = []

    def outcome(config: Config) -> Outcome:
        runs.append(config)
        gain = 5.0 if len(runs) - 1 == lucky else 2.0 if config == {"precision": "bf16"} else 0.97
        return worlds.measured(100.0 * (gain if config else 1.0) * (1 + 0.001 * (len(runs) % 5)))

    return outcome


def finals(folder: Path) -> dict[str, object]:
    repository = Repository(worlds.plan(folder).url)
    try:
        return repository.finals(repository.studies()[0].id)
    finally:
        repository.close()


def groups(trials: tuple[Trial, ...]) -> set[tuple[int, ...]]:
    return {trial.group for trial in trials if trial.phase is Phase.FINALS}


def plan(folder: Path, trials: int) -> StudyPlan:
    return worlds.plan(
        folder, trials=trials, finalists=1, selection=("precision", "compile"), accuracy=UNSCREENED, finals_rounds=5
    )


def test_a_proof_stands_where_later_finals_of_another_config_prove_nothing(tmp_path: Path) -> None:
    first = Ran(plan(tmp_path, 2), speeds()).result
    assert first.winner is not None and first.winner.verdict is Verdict.IMPROVED
    resumed = Ran(plan(tmp_path, 4), speeds(lucky=1)).result
    assert len(groups(resumed.trials)) == 2, "the lucky one had its finals"
    assert resumed.winner == first.winner
    assert finals(tmp_path)["opening"] == 2


def test_the_same_candidates_again_are_no_new_finals(tmp_path: Path) -> None:
    first = Ran(plan(tmp_path, 2), speeds()).result
    resumed = Ran(plan(tmp_path, 4), speeds()).result
    assert len(resumed.trials) > len(first.trials)
    assert groups(resumed.trials) == groups(first.trials)
    assert resumed.winner == first.winner
    assert finals(tmp_path)["opening"] == 1
