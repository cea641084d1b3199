"""What a training pays once beside its start, as where its first pass fills a cache: who it is charged to, and told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds
from support.entries import entries_of
from support.ran import Ran

from tuner.analysis.measurement import measurement_of
from tuner.model import Config, Evidence, KnobReport, Measurement, Outcome
from tuner.objective import amortised
from tuner.report.summary import _break_even
from tuner.space.choose import Spaces
from tuner.space.declare import Knob, SearchSpace

FILLED = KnobReport("cache", True, 1, 1, Evidence.VERIFIED)
DONE: dict[str, Any] = {"kind": "window", "t": 999.0, "complete": True, "why": ""}


def blocks(count: int, samples: float, start: float, phase: str, **fields: Any) -> list[dict[str, Any]]:
    """Of half a second each."""
    block = {"kind": "block", "phase": phase, "steps": 5, "samples": samples, "seconds": 0.5, "wait_s": 0.0}
    return [{**block, "t": start + 0.5 * (place + 1), **fields} for place in range(count)]


def extra_s(records: list[dict[str, Any]]) -> float:
    measurement = measurement_of(entries_of([*records, DONE]), [])
    assert measurement is not None and measurement.warmup_extra_s is not None
    return measurement.warmup_extra_s


def outcome(rate: float, *, start_s: float = 1.0, extra_s: float = 0.0, knobs: tuple[KnobReport, ...] = ()) -> Outcome:
    made = worlds.measured(rate, knobs=knobs)
    assert made.measurement is not None
    return replace(made, measurement=replace(made.measurement, first_step_s=start_s, warmup_extra_s=extra_s))


def test_a_first_pass_is_held_against_what_its_samples_take_later() -> None:
    """200 samples in 10 s, which take 1 s at the window's rate."""
    filling, later = blocks(20, 10.0, 0.0, "warmup"), blocks(12, 100.0, 10.0, "window")
    assert extra_s([*filling, *later]) == pytest.approx(9.0)
    assert extra_s([*blocks(6, 100.0, 0.0, "warmup"), *later]) == 0.0
    assert extra_s([*blocks(6, 120.0, 0.0, "warmup"), *later]) == 0.0, "a faster beginning is no gift"
    assert extra_s(later) == 0.0


def test_validation_before_the_window_is_no_part_of_it() -> None:
    filling, later = blocks(20, 10.0, 0.0, "warmup"), blocks(12, 100.0, 15.0, "window")
    validation = blocks(10, 0.0, 10.0, "warmup", flagged=True, steps=0)
    assert extra_s([*filling, *validation, *later]) == pytest.approx(9.0)


def test_of_a_window_that_began_while_a_cache_was_filled_all_that_came_before_counts() -> None:
    early, warm = blocks(8, 10.0, 2.0, "window", turn=1), blocks(2, 100.0, 6.0, "warmup")
    later = blocks(12, 100.0, 7.0, "window", turn=2)
    assert extra_s([*blocks(4, 10.0, 0.0, "warmup"), *early, *warm, *later]) == pytest.approx(6.0 - 0.6 - 1.0 + 1.0)


def test_where_no_window_was_reached_nothing_is_told_of_it() -> None:
    assert extra_s(blocks(12, 100.0, 0.0, "warmup")) == 0.0


def test_it_is_charged_over_the_samples_that_are_planned() -> None:
    over = amortised(worlds.OBJECTIVE, 10_000)
    measurement = outcome(200.0, start_s=2.0, extra_s=48.0).measurement
    assert measurement is not None
    assert over.score(measurement) == pytest.approx(10_000 / (2 + 48 + 50))


def test_a_cache_wins_where_it_does_over_the_planned_samples(tmp_path: Path) -> None:
    """It makes the loop 1.5 times as fast after 40 s of filling: that is paid back after 12,000 samples."""
    cache = Knob("cache", lambda known: [False, True], "a cache", loader=True)
    spaces = Spaces((SearchSpace("made-up", "none", (cache,)),))

    def caching(config: Config) -> Outcome:
        knowledge = replace(worlds.measured(1.0).knowledge, as_written={"cache": False})
        made = outcome(150.0, extra_s=40.0, knobs=(FILLED,)) if config.get("cache") else outcome(100.0)
        return replace(made, knowledge=knowledge)

    def winner(samples: int) -> Any:
        plan = worlds.plan(tmp_path / str(samples), objective=amortised(worlds.OBJECTIVE, samples), spaces=spaces)
        return Ran(plan, caching).result.winner

    assert winner(11_000) is None
    found = winner(120_000)
    assert found is not None and found.config == {"cache": True}
    assert found.speedup.ratio == pytest.approx((1 + 1200) / (1 + 40 + 800), rel=1e-6)


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (outcome(150.0, extra_s=40.0, knobs=(FILLED,)), "the filling of its cache pays off after 12,000 samples"),
        (
            outcome(150.0, start_s=11.0, extra_s=30.0, knobs=(FILLED,)),
            "its slower start and the filling of its cache pay off after 12,000 samples",
        ),
        (outcome(150.0, start_s=41.0, extra_s=1.0, knobs=(FILLED,)), "its slower start pays off after 12,300 samples"),
        (outcome(150.0, extra_s=40.0), "its slower first steps pay off after 12,000 samples"),
    ],
    ids=["cache", "both", "start", "first-steps"],
)
def test_the_summary_says_from_which_sample_on_it_pays(after: Outcome, told: str) -> None:
    before = outcome(100.0).measurement
    assert isinstance(before, Measurement) and after.measurement is not None
    [line] = _break_even(before, after.measurement)
    assert line.startswith(f"{told} (")
    assert _break_even(before, replace(after.measurement, rate=100.0)) == []
