"""Whose loop configs take turns in: Keras' own, which compiles each of them, and no other trainer's."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds

from tuner.events import Event, Noted
from tuner.model import Config, Outcome, Phase, Ratio, Rotated, Value
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.space.choose import Spaces
from tuner.space.declare import Knob, SearchSpace
from tuner.study.run import run_study

WRITTEN: Mapping[str, Value] = {"precision": "fp32", "steps_in_call": 1}
SPACE = SearchSpace(
    "made-up",
    "none",
    (
        Knob("precision", lambda known: ["fp32", "bf16"], "precision", switchable=True),
        Knob("steps_in_call", lambda known: [1, 4, 16, 64], "steps in a call", ordered=True, switchable=True),
    ),
)


class Fitted(ReplayRunner):
    """All its configs are as fast; several may take turns in one of its processes."""

    rotates = True

    def __init__(self, trainer: str, framework: str, first_step_s: float, backend: str = "") -> None:
        super().__init__(self._outcome_of)
        self._backend = backend
        self._trainer = trainer
        self._framework = framework
        self._first_step_s = first_step_s
        self.rotations: list[tuple[Config, ...]] = []

    def _outcome_of(self, config: Config) -> Outcome:
        outcome = worlds.measured(1000)
        assert outcome.measurement is not None
        known = replace(
            outcome.knowledge, trainer=self._trainer, framework=self._framework, backend=self._backend,
            as_written=dict(WRITTEN),
        )  # fmt: skip
        return replace(
            outcome, knowledge=known, seconds=10.0 + self._first_step_s,
            measurement=replace(outcome.measurement, first_step_s=self._first_step_s),
        )  # fmt: skip

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        outcome = super().run(request, stop)
        if not request.rotation:
            return outcome
        self.rotations.append(request.rotation)
        said = (Rotated(config, Ratio(1.0, 0.95, 1.05), 3) for config in request.rotation)
        return replace(outcome, rotation=tuple(said))


@pytest.mark.parametrize(
    ("trainer", "framework", "first_step_s", "obstacle"),
    [
        ("keras", "keras", 1.0, ""),
        ("transformers", "torch", 1.0, "transformers sets some of the knobs itself"),
        ("", "torch", 25.0, ""),
        ("keras", "keras", 25.0, "configs in one process would take about"),
    ],
)
def test_keras_own_loop_is_switched_in_and_compiles_each_config(
    tmp_path: Path, trainer: str, framework: str, first_step_s: float, obstacle: str
) -> None:
    """A config's compilation takes half of what a start does: so much is foreseen of a quarter of the search's time."""
    events: list[Event] = []
    runner = Fitted(trainer, framework, first_step_s)
    plan = worlds.plan(tmp_path, spaces=Spaces((SPACE,)), trials=9, budget_s=1200.0)
    run_study(plan, runner, StructuredSampler(), events.append, threading.Event())
    notes = [event.text for event in events if isinstance(event, Noted) and event.text.startswith("no rotation")]
    assert bool(runner.rotations) is not bool(obstacle), notes
    assert not obstacle or obstacle in notes[0]


@pytest.mark.parametrize("kind", ["xla", "tpu"])
def test_where_each_config_is_other_graphs_no_process_is_started_for_turns(tmp_path: Path, kind: str) -> None:
    runner, events = Fitted("", "torch", 1.0), list[Event]()
    plan = worlds.plan(tmp_path, spaces=Spaces((SPACE,)), trials=9, budget_s=1200.0)
    plan = replace(plan, device=replace(plan.device, kind=kind))
    run_study(plan, runner, StructuredSampler(), events.append, threading.Event())
    assert not runner.rotations
    assert not any("no rotation" in event.text for event in events if isinstance(event, Noted))


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_where_keras_computes_with_another_library_no_process_is_started_for_turns(
    tmp_path: Path, backend: str
) -> None:
    """It refused once it trained, and was a trial that had failed."""
    runner, events = Fitted("keras", "keras", 1.0, backend), list[Event]()
    plan = worlds.plan(tmp_path, spaces=Spaces((SPACE,)), trials=9, budget_s=1200.0)
    result = run_study(plan, runner, StructuredSampler(), events.append, threading.Event())
    notes = [event.text for event in events if isinstance(event, Noted)]
    assert f"no rotation: Keras computes with {backend} here" in notes
    assert not runner.rotations and not any(trial.phase is Phase.ROTATION for trial in result.trials)


def test_where_not_all_configs_have_time_fewer_take_turns(tmp_path: Path) -> None:
    """Four would take 63 s of the 60 s that half of a trial's time limit is."""
    runner = Fitted("keras", "keras", 18.0)
    plan = worlds.plan(tmp_path, spaces=Spaces((SPACE,)), trials=9, budget_s=1200.0)
    result = run_study(plan, runner, StructuredSampler(), lambda event: None, threading.Event())
    assert runner.rotations[0] == (Config(precision="bf16"), Config(steps_in_call=4), Config(steps_in_call=16))
    assert any("3 configs in one process" in trial.why for trial in result.trials)
