"""What a study exports: nothing that learns worse, breaks a limit, or was proven under other conditions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from support import worlds
from support.ran import Ran, of

from tuner.analysis.accuracy import AccuracyLimits
from tuner.analysis.stats import Noninferiority
from tuner.events import Noted
from tuner.formatting import result_text
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase, Script, Trial
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.space.choose import Spaces
from tuner.study.run import run_study


def learns(config: Config, seed: int | None, *, harm: float) -> Outcome:
    """bf16 is fast, and learns worse by ``harm``; workers are faster and harmless."""
    outcome = worlds.measured(100.0 * (2.0 if "precision" in config else 1.0) * (1.2 if "workers" in config else 1.0))
    assert outcome.measurement is not None
    late = 1.0 + 0.01 * (seed or 0) + (harm if "precision" in config else 0.0)
    losses = worlds.series([2.0] * 10 + [late] * 30)
    return replace(outcome, measurement=replace(outcome.measurement, losses=(losses,), data_wait_share=0.3))


class Learning(ReplayRunner):
    """A replay that knows of seeds."""

    def __init__(self, harm: float) -> None:
        super().__init__(lambda config: learns(config, self.requests[-1].seed, harm=harm))


def proven(tmp_path: Path, harm: float, **changes: Any) -> tuple[StudyResult, Learning]:
    runner = Learning(harm)
    plan = worlds.plan(tmp_path, trials=8, selection=("workers", "precision"), **changes)
    return run_study(plan, runner, StructuredSampler(), lambda event: None, threading.Event()), runner


def test_a_config_that_learns_worse_is_not_exported(tmp_path: Path) -> None:
    result, _ = proven(tmp_path, harm=0.05)
    assert result.best is not None and "precision" in result.best.config
    assert result.winner is not None
    assert "precision" not in result.winner.config
    assert "workers" in result.winner.config
    assert {screened.verdict for screened in result.screened} == {Noninferiority.FAIL}


def test_a_config_that_learns_as_well_is_exported_with_its_screen(tmp_path: Path) -> None:
    result, runner = proven(tmp_path, harm=0.0001)
    assert result.winner is not None
    assert "precision" in result.winner.config
    assert result.screened[0].verdict is Noninferiority.PASS
    screens = [request for request in runner.requests if request.seed is not None]
    assert {request.seed for request in screens} == {1, 2, 3}
    assert all(request.window.until_samples == result.screened[0].samples for request in screens)
    baselines = [request.seed for request in screens if not request.config]
    assert sorted(baselines, key=str) == [1, 2, 3]


def test_screens_are_not_run_again(tmp_path: Path) -> None:
    first, _ = proven(tmp_path, harm=0.0001)
    again, runner = proven(tmp_path, harm=0.5)
    assert runner.requests == []
    assert again.screened == first.screened


def test_a_screen_that_failed_early_is_derived_again_without_time_for_its_other_seeds(tmp_path: Path) -> None:
    """A run that fails settles a screen: seeds that were never run lack no time."""

    class Failing(Learning):
        def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
            outcome = super().run(request, stop)
            failed = request.seed == 2 and "precision" in request.config
            return replace(outcome, kind=OutcomeKind.TIMED_OUT, measurement=None) if failed else outcome

    plan = worlds.plan(tmp_path, trials=3, selection=("precision",), budget_s=10_000.0)
    first = run_study(plan, Failing(0.0), StructuredSampler(), lambda event: None, threading.Event())
    assert {screened.seeds for screened in first.screened} == {2}
    late = replace(plan, budget_s=0.001)
    again = run_study(late, Failing(0.0), StructuredSampler(), lambda event: None, threading.Event())
    assert again.screened == first.screened


def test_without_a_limit_nothing_is_screened(tmp_path: Path) -> None:
    result, runner = proven(tmp_path, harm=0.5, accuracy=AccuracyLimits(max_loss_increase=None))
    assert result.winner is not None and "precision" in result.winner.config
    assert all(request.seed is None for request in runner.requests)


def test_a_machine_that_slowed_down_over_a_pause_does_not_hide_the_best(tmp_path: Path) -> None:
    def speed(factor: float) -> Callable[[Config], Outcome]:
        def outcome(config: Config) -> Outcome:
            gain = (1.5 if "workers" in config else 1.0) * (2.0 if "precision" in config else 1.0)
            return worlds.measured(factor * 100.0 * gain)

        return outcome

    Ran(worlds.plan(tmp_path, trials=2, selection=("workers", "precision")), speed(1.0))
    resumed = Ran(worlds.plan(tmp_path, trials=6, selection=("workers", "precision")), speed(0.4))
    assert resumed.result.best is not None
    assert {"precision"} <= set(resumed.result.best.config)


def test_a_limit_that_was_set_later_counts(tmp_path: Path) -> None:
    unlimited, _ = proven(tmp_path, harm=0.05, accuracy=AccuracyLimits(max_loss_increase=None))
    assert unlimited.winner is not None and "precision" in unlimited.winner.config
    limited, _ = proven(tmp_path, harm=0.05)
    assert limited.winner is not None and "precision" not in limited.winner.config
    assert limited.winner.config


def test_a_memory_limit_that_was_set_later_counts(tmp_path: Path) -> None:
    def hungry(config: Config) -> Outcome:
        outcome = worlds.measured(200.0 if "precision" in config else 100.0)
        assert outcome.measurement is not None
        host = 2_000 if config else 500
        return replace(outcome, measurement=replace(outcome.measurement, peak_host_bytes=host))

    free = Ran(worlds.plan(tmp_path, trials=3, selection=("precision",)), hungry)
    assert free.result.winner is not None
    tight = Ran(worlds.plan(tmp_path, trials=3, selection=("precision",), limits=Limits(max_host_bytes=1_000)), hungry)
    assert tight.result.winner is None


def test_a_screen_fits_into_a_trials_time(tmp_path: Path) -> None:
    """A step of three seconds: sixty of them would outlast any trial."""

    def slow(config: Config) -> Outcome:
        outcome = learns(config, None, harm=0.0)
        assert outcome.measurement is not None
        return replace(outcome, measurement=replace(outcome.measurement, steps_per_s=1 / 3, rate=10.0))

    runner = ReplayRunner(slow)
    plan = worlds.plan(tmp_path, trials=3, selection=("precision",), limits=Limits(trial_timeout_s=120.0))
    run_study(plan, runner, StructuredSampler(), lambda event: None, threading.Event())
    screens = [request for request in runner.requests if request.seed is not None]
    assert all(request.window.until_samples / 10.0 <= 60.0 for request in screens)


def test_a_runner_up_is_not_screened_with_the_finals_time(tmp_path: Path) -> None:
    """The best config needs no screen; once it is found, the time that is left is the finals'."""

    def outcome(config: Config) -> Outcome:
        return worlds.measured(300.0 if "layout" in config else 100.5 if config else 100.0)

    runner = ReplayRunner(outcome)
    # A trial is told as 10 s: the budget has room for the finals, and for nothing else.
    plan = worlds.plan(tmp_path, trials=4, selection=("precision", "layout"), budget_s=100.0)
    result = run_study(plan, runner, StructuredSampler(), lambda event: None, threading.Event())
    assert any("precision" in trial.config for trial in result.trials)
    assert all(request.seed is None for request in runner.requests)
    assert result.winner is not None


def test_bound_values_are_known_to_the_baseline(tmp_path: Path) -> None:
    script = Script("train.py", ("--batch_size={batch_size=64|256}", "--layout={layout}"), sha256="0" * 64)
    ran = Ran(worlds.plan(tmp_path, trials=2, script=script), worlds.World().outcome)
    known = Knowledge(placeholders=("batch_size", "layout"), as_written={"batch_size": 64})
    assert ran.runner.requests[0].knowledge == known


def test_values_that_the_constraints_exclude_are_named(tmp_path: Path) -> None:
    only_small = replace(worlds.SPACE, allowed=lambda complete, knowledge: int(complete["batch_size"]) <= 64)
    ran = Ran(worlds.plan(tmp_path, trials=12, spaces=Spaces((only_small,))), worlds.World().outcome)
    notes = [event.text for event in of(ran.events, Noted) if event.text.startswith("not tried")]
    assert len(notes) == 1
    assert notes[0].endswith("batch_size=128, batch_size=256, batch_size=512")
    assert all(int(config.get("batch_size", 64)) <= 64 for config in ran.configs)


def test_a_metric_that_the_script_does_not_give_is_named_at_once(tmp_path: Path) -> None:
    events: list[Any] = []
    limits = AccuracyLimits(max_loss_increase=None, max_metric_drop={"accuracy": 0.01})
    plan = worlds.plan(tmp_path, trials=3, selection=("precision",), accuracy=limits)
    run_study(plan, Learning(0.0), StructuredSampler(), events.append, threading.Event())
    notes = [event.text for event in of(events, Noted)]
    assert any("accuracy: the script gave no such metric; it gave none at all" in text for text in notes)


def test_skipped_steps_are_shown_with_the_trial() -> None:
    outcome = learns(BASELINE, None, harm=0.0)
    assert outcome.measurement is not None
    skipping = replace(outcome.measurement, scaled_steps=200, skipped_steps=24)
    trial = Trial(3, Phase.SEARCH, Config(precision="fp16"), "", replace(outcome, measurement=skipping))
    assert "12% of steps skipped" in result_text(trial)
