"""Of short steps of the script as written it is told that autotune's own instruments are a part."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds

from tuner.child.words import INSTRUMENTS
from tuner.events import Event, Noted
from tuner.model import Config, Outcome
from tuner.runner.replay import ReplayRunner
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study


def notes(folder: Path, step_s: float, *remarks: str, per_call: int = 1, own_s: float = 0.0) -> list[str]:
    """What a study of a script says whose steps take so long, so many of them in a call as it is written.

    ``own_s``: what its trial has told of autotune's own instruments.
    """
    told = list[Event]()

    def outcome_of(config: Config) -> Outcome:
        outcome = worlds.measured(1000.0)
        assert outcome.measurement is not None
        blocks = tuple(replace(block, steps=round(block.seconds / step_s)) for block in outcome.measurement.blocks)
        as_written = {**outcome.knowledge.as_written, "steps_per_execution": per_call}
        knowledge = replace(outcome.knowledge, remarks=remarks, as_written=as_written, instruments_s=own_s)
        return replace(outcome, measurement=replace(outcome.measurement, blocks=blocks), knowledge=knowledge)

    plan = worlds.plan(folder, trials=1)
    run_study(plan, ReplayRunner(outcome_of), StructuredSampler(), told.append, threading.Event())
    return [event.text for event in told if isinstance(event, Noted) and INSTRUMENTS in event.text]


@pytest.mark.parametrize(("step_s", "is_told"), [(0.002, True), (0.02, False)])
def test_what_is_autotunes_own_of_a_short_step_is_told(tmp_path: Path, step_s: float, is_told: bool) -> None:
    found = notes(tmp_path, step_s)
    assert len(found) == int(is_told)
    assert not is_told or "as written: a step takes 2 ms" in found[0]


def test_where_the_trial_has_measured_it_that_is_told_alone(tmp_path: Path) -> None:
    (told,) = notes(tmp_path, 0.002, f"{INSTRUMENTS} take 0.2 ms of each step, which are in no rate", own_s=0.0002)
    assert "0.2 ms" in told


@pytest.mark.parametrize(("per_call", "is_told"), [(1, True), (4, False)])
def test_of_several_steps_in_a_call_the_call_counts(tmp_path: Path, per_call: int, is_told: bool) -> None:
    """What autotune does comes once a call: of one of 8 ms it is next to nothing, though a step takes 2 ms."""
    assert bool(notes(tmp_path, 0.002, per_call=per_call)) is is_told
