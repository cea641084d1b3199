"""A window waits for a cache that is being filled, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.in_process import Log

from tuner.child.clock import StepClock
from tuner.child.clock_limits import FILL_S
from tuner.child.records import Phase, Window

WINDOW = Window(warmup_steps=4, warmup_s=1.0, block_s=0.25, min_blocks=3, min_s=0.5, max_s=2.0, target_half_width=1e9)


def seconds_before(window: Window, is_full: Callable[[float], bool]) -> float:
    """Of training before the window that is left at last. Steps take 0.1 s, and half of that once the cache is full."""
    log, now = Log(), [0.0]
    clock = StepClock(log, window, clock=lambda: now[0])
    clock.is_filling = lambda: not is_full(now[0])
    clock.activity = lambda: int(is_full(now[0]))
    while not clock.step():
        clock.add_samples(8, 0.0)
        now[0] += 0.05 if is_full(now[0]) else 0.1
        assert now[0] < 100
    blocks = log.of("block")
    last = max(place for place, block in enumerate(blocks) if block["phase"] == "warmup")
    rates = {round(block["samples"] / block["seconds"]) for block in blocks[last + 1 :]}
    assert rates == {160 if is_full(now[0]) else 80}, "either side of the change, and not both"
    return sum(float(block["seconds"]) for block in blocks[: last + 1])


def test_without_a_cache_nothing_is_waited_for() -> None:
    assert seconds_before(WINDOW, lambda now: True) == pytest.approx(1.0, abs=0.3)


def test_the_window_begins_after_it_was_filled() -> None:
    assert seconds_before(WINDOW, lambda now: now > 6.0) == pytest.approx(7.0, abs=0.5)


def test_it_begins_all_the_same_where_that_takes_too_long() -> None:
    assert seconds_before(WINDOW, lambda now: False) == pytest.approx(FILL_S, abs=0.5)


def test_it_begins_anew_where_it_is_filled_within() -> None:
    full_s = FILL_S + 1.0
    assert seconds_before(WINDOW, lambda now: now > full_s) == pytest.approx(full_s + 1.0, abs=0.5)


def test_it_ends_with_the_first_pass_where_nothing_else_is_to_be_measured() -> None:
    """As that of the script as written did. The block in which the pass ends holds some of both, and counts nowhere."""
    log, now = Log(), [0.0]
    clock = StepClock(log, replace(WINDOW, max_s=60.0, min_blocks=1000), clock=lambda: now[0])
    clock.is_past = lambda: now[0] > 6.05
    while not clock.step():
        clock.add_samples(8, 0.0)
        now[0] += 0.02 if clock.is_past() else 0.1
        assert now[0] < 10
    blocks = log.of("block")
    assert {round(block["samples"] / block["seconds"]) for block in blocks if not block["flagged"]} == {80}
    assert [block["flagged"] for block in blocks[-2:]] == [False, True] and now[0] < 6.6
    assert clock.is_measurable


def test_it_waits_for_as_long_as_it_has_to() -> None:
    log, now = Log(), [0.0]
    clock = StepClock(log, WINDOW, clock=lambda: now[0])
    clock.is_filling, clock.fill_s = (lambda: now[0] < 55.0), (lambda: 60.0)
    while clock.phase is Phase.WARMUP:
        clock.add_samples(8, 0.0)
        clock.step()
        now[0] += 0.1
    assert now[0] == pytest.approx(55.0, abs=0.5)


def test_a_look_at_losses_waits_for_nothing() -> None:
    log, now = Log(), [0.0]
    clock = StepClock(log, replace(WINDOW, until_samples=160.0), clock=lambda: now[0])
    clock.is_filling = lambda: True
    while not clock.step():
        clock.add_samples(8, 0.0)
        now[0] += 0.1
    assert clock.total_samples == pytest.approx(160, abs=24)
