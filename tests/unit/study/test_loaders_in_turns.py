"""A study whose script waits for its data has loaders take turns in one process before it searches."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from support import worlds

from tuner.events import Event, Noted
from tuner.model import Config, Outcome, Phase, Ratio, Rotated
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import TrialRequest
from tuner.search.rotation import FEWEST_STEPS
from tuner.search.structured import StructuredSampler
from tuner.space.choose import Spaces
from tuner.space.declare import Knob, SearchSpace
from tuner.study.lengths import LOADER_TURN_S
from tuner.study.run import run_study

SPACE = SearchSpace(
    "made-up",
    "none",
    (
        Knob(
            "workers", lambda known: [0, 1, 2, 4, 8], "loader workers", ordered=True, loader=True, on_cores=True,
            switchable=True,
        ),
        Knob("precision", lambda known: ["fp32", "bf16"], "precision", switchable=True),
        Knob("layout", lambda known: [False, True], "layout", switchable=True),
    ),
)  # fmt: skip
RATES = {0: 1.0, 1: 0.9, 2: 1.4, 4: 2.1, 8: 1.8}


def rate_of(config: Config) -> float:
    return RATES[int(str(config.get("workers", 0)))] * (1.1 if config.get("precision") == "bf16" else 1.0)


def outcome_of(config: Config) -> Outcome:
    made = worlds.measured(1000 * rate_of(config), 0.7 / rate_of(config))
    assert made.measurement is not None
    blocks = tuple(replace(block, steps=FEWEST_STEPS) for block in made.measurement.blocks)
    return replace(made, measurement=replace(made.measurement, blocks=blocks))


class Rotating(ReplayRunner):
    """Several configs may take turns in one of its processes."""

    rotates = True

    def __init__(self) -> None:
        super().__init__(outcome_of)
        self.rotations: list[TrialRequest] = []

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        outcome = super().run(request, stop)
        if not request.rotation:
            return outcome
        self.rotations.append(request)
        gains = {config: rate_of(config) for config in request.rotation}
        said = [Rotated(config, Ratio(gain, gain / 1.05, gain * 1.05), 3) for config, gain in gains.items()]
        return replace(outcome, rotation=tuple(said))


def test_the_fastest_loader_gets_the_first_trial(tmp_path: Path) -> None:
    """It waits for 70% of its time: without loaders there is no rotation then."""
    runner, events = Rotating(), list[Event]()
    plan = worlds.plan(tmp_path, spaces=Spaces((SPACE,)), trials=6)
    result = run_study(plan, runner, StructuredSampler(), events.append, threading.Event())
    first, second = runner.rotations
    assert [config.get("workers") for config in first.rotation][:4] == [1, 2, 4, 8]
    assert Config(precision="bf16") in first.rotation and Config(workers=4, precision="bf16") in second.rotation
    assert first.window.block_s == second.window.block_s == LOADER_TURN_S
    searched = [trial.config for trial in result.trials if trial.phase is Phase.SEARCH]
    assert searched[0] == Config(workers=4, precision="bf16")
    assert not any(isinstance(event, Noted) and "no rotation" in event.text for event in events)
