"""What autotune's own instruments take of short steps is told by steps without them, and is in no rate."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from support.in_process import Log

from tuner.child.clock import StepClock
from tuner.child.instruments import LEAST_STEPS, MOST_S, ROUGHLY, SHORT_STEP_S
from tuner.child.records import Knowledge, Window
from tuner.child.recurring import NOTHING
from tuner.child.reported import ReportedSamples

OWN_S = 0.0002
WINDOW = Window(warmup_steps=10, warmup_s=0.5, min_blocks=12, min_s=3.0, max_s=3.0)


class Loop:
    """Steps of a made-up length, each of ``batch`` samples, on a clock of our own, until its window is complete."""

    def __init__(self, step_s: float, *, spread: float = 0.1, may_go_off: bool = True, window: Window = WINDOW) -> None:
        self.now, self.log, self.step_s, self.batch = 0.0, Log(), step_s, 32
        self.steps, self.without, self.wait_s = 0, 0, 0.0
        self._random, self._spread = random.Random(3), spread
        self.clock = StepClock(self.log, window, clock=lambda: self.now)
        self.instruments = self.clock.instruments
        self.instruments.is_wanted, self.instruments.may_go_off = lambda: True, lambda: may_go_off
        self.missed = list[int]()
        self.instruments.listeners.append(self.missed.append)

    def step(self, longer_s: float = 0.0) -> None:
        """As a hook does it."""
        off = self.instruments.off
        self.steps, self.without = self.steps + 1, self.without + off
        self.now += self.step_s * self._random.uniform(1 - self._spread, 1 + self._spread) + longer_s
        if off:
            self.instruments.passed()
            return
        self.now += OWN_S
        self.clock.add_samples(self.batch, self.wait_s)
        self.clock.step()

    def run(self, *, epoch: int = 10**9, epoch_s: float = 0.0, validates: bool = False) -> Loop:
        """Until the window is complete. So many steps are an ``epoch``, whose end takes time, or a validation."""
        while not self.clock.complete:
            ends = self.steps % epoch == epoch - 1
            self.step(0.0 if validates else epoch_s * ends)
            if ends and validates:
                self.clock.validation_begins(self)
                self.now += epoch_s
                self.clock.fetch_begins()
        return self

    @property
    def told_s(self) -> float:
        """A step by the blocks of the window."""
        blocks = [each for each in self.log.of("block") if each["phase"] == "window" and not each["flagged"]]
        return float(sum(each["seconds"] for each in blocks) / sum(each["steps"] for each in blocks))


@pytest.mark.parametrize("step_s", [0.00005, 0.0006, 0.004])
def test_a_short_step_is_told_without_what_is_autotunes_own(step_s: float) -> None:
    loop = Loop(step_s)
    loop.instruments.knows(Knowledge(), {})  # of the script as written nothing yet
    loop.run()
    assert loop.instruments.step_s == pytest.approx(OWN_S, abs=0.015 * step_s)
    assert loop.told_s == pytest.approx(step_s, rel=0.02)
    assert loop.without >= 12 * LEAST_STEPS
    block = loop.log.of("block")[-1]
    assert block["instruments_s"] == pytest.approx(block["steps"] * OWN_S, rel=0.25)


def test_a_long_step_and_one_that_always_has_them_are_told_as_they_are() -> None:
    for loop in (Loop(1.1 * SHORT_STEP_S).run(), Loop(0.0006, may_go_off=False).run()):
        assert (loop.without, loop.instruments.step_s) == (0, 0.0)
        assert loop.told_s == pytest.approx(loop.step_s + OWN_S, rel=0.01)
        assert all(block["instruments_s"] == 0.0 for block in loop.log.of("block"))


WRITTEN, CONFIG = Knowledge(steps=100, instruments_s=OWN_S), {"num_workers": 2}


@pytest.mark.parametrize(
    ("known", "step_s", "told_s"),
    [
        (Knowledge(steps=100), 0.001, 0.001 + OWN_S),
        (WRITTEN, 1.5 * SHORT_STEP_S, 1.5 * SHORT_STEP_S),
        (WRITTEN, 2 * SHORT_STEP_S, 2 * SHORT_STEP_S + OWN_S),
    ],
    ids=["not told of the script", "told of it", "of longer steps"],
)
def test_it_is_told_of_a_config_where_it_was_of_the_script_as_written(
    known: Knowledge, step_s: float, told_s: float
) -> None:
    """A ratio is wrong by all that is taken out of one of its sides alone."""
    loop = Loop(step_s)
    loop.instruments.knows(known, CONFIG)
    assert loop.run().told_s == pytest.approx(told_s, rel=0.02)
    assert bool(loop.without) is (told_s == step_s)


def test_where_it_cannot_be_told_of_a_config_it_is_what_it_was_of_the_script() -> None:
    kept = Loop(0.001, may_go_off=False)
    kept.instruments.knows(WRITTEN, CONFIG)
    assert kept.run().told_s == pytest.approx(kept.step_s, rel=0.01)
    pauses, chance = Loop(0.001), random.Random(2)
    pauses.instruments.knows(WRITTEN, CONFIG)
    while not pauses.clock.complete:
        pauses.step(0.02 * (chance.random() < 0.1))
    assert pauses.without and pauses.instruments.step_s == pytest.approx(OWN_S, abs=0.05 * 0.003)
    training = Loop(0.0006)
    training.instruments.knows(WRITTEN, CONFIG)
    assert training.run(epoch=6, epoch_s=0.01, validates=True).told_s == pytest.approx(training.step_s, rel=0.05)


@pytest.mark.parametrize(
    ("stock", "wait_s", "hidden_s"),
    [(None, 1.0, 0.0), (0.0, 1.0, OWN_S), (64.0, 1.0, OWN_S), (64.0, OWN_S / 4, OWN_S / 4)],
    ids=["a loader that works in the loop", "one that is behind", "one that is waited for", "one that is ahead"],
)
@pytest.mark.parametrize("as_written", [False, True])
def test_what_hides_behind_a_wait_for_data_is_not_taken_out_of_a_config_by_the_figure_of_the_script(
    stock: float | None, wait_s: float, hidden_s: float, as_written: bool
) -> None:
    loop = Loop(0.001, may_go_off=False)
    loop.wait_s = wait_s
    loop.clock.ready = lambda: stock
    loop.instruments.knows(WRITTEN, {} if as_written else CONFIG)
    assert loop.run().told_s == pytest.approx(loop.step_s + hidden_s * (not as_written), rel=0.01)


def test_a_figure_of_its_own_is_taken_out_of_a_config_that_was_told_the_scripts_first() -> None:
    """Tried before: where steps couldn't go without them at first, its own figure was held to hide behind a wait."""
    loop = Loop(0.001)
    loop.wait_s, loop.clock.ready = 1.0, lambda: 64.0
    loop.instruments.may_go_off = lambda: loop.clock.total_steps > 300
    loop.instruments.knows(WRITTEN, CONFIG)
    assert loop.run().without and loop.told_s == pytest.approx(loop.step_s, rel=0.02)


@pytest.mark.parametrize("knob", ["steps_per_execution", "steps_per_call", "batch_size", "grad_accumulation"])
def test_where_a_step_may_take_fewer_calls_the_figure_of_the_script_is_not_taken(knob: str) -> None:
    """A step of 0.4 ms of a config with eight in a call was told 0.56 of its length."""
    loop = Loop(0.0004, may_go_off=False)
    loop.instruments.knows(WRITTEN, {"num_workers": 2, knob: 8})
    assert loop.run().told_s == pytest.approx(loop.step_s + OWN_S, rel=0.01)


def test_a_figure_of_the_script_that_leaves_nothing_of_a_step_is_not_taken() -> None:
    loop = Loop(OWN_S / 20, may_go_off=False)
    loop.instruments.knows(WRITTEN, CONFIG)
    assert loop.run().told_s == pytest.approx(loop.step_s + OWN_S, rel=0.01)


@pytest.mark.parametrize("validates", [False, True])
def test_ends_of_epochs_and_validations_are_no_part_of_it(validates: bool) -> None:
    loop = Loop(0.0006).run(epoch=300, epoch_s=0.05, validates=validates)
    assert loop.instruments.step_s == pytest.approx(OWN_S, abs=0.05 * loop.step_s)
    assert loop.without


def test_where_training_is_always_interrupted_the_window_comes_all_the_same() -> None:
    loop = Loop(0.0006).run(epoch=6, epoch_s=0.01, validates=True)
    assert loop.clock.complete and loop.instruments.step_s == 0.0
    assert not loop.instruments.is_under_way


def test_all_steps_count_as_taken_and_those_without_them_in_no_block() -> None:
    loop = Loop(0.0006).run()
    assert loop.clock.total_steps == loop.steps
    assert loop.clock.total_samples == pytest.approx(loop.steps * loop.batch, rel=0.01)
    assert sum(loop.missed) == loop.without > 0
    in_blocks = sum(block["steps"] for block in loop.log.of("block"))
    assert in_blocks <= loop.steps - loop.without
    assert loop.instruments._ends_at <= WINDOW.warmup_s + MOST_S + 0.3


def test_a_script_that_ends_within_a_stretch_has_taken_all_its_steps() -> None:
    loop = Loop(0.0006)
    while not (loop.instruments.off and loop.instruments._passed > 3):
        loop.step()
    loop.clock.flush()
    assert loop.clock.total_steps == loop.steps and not loop.instruments.off


def test_on_a_machine_that_is_faster_by_then_their_share_is_taken_out() -> None:
    class Faster(Loop):
        def step(self, longer_s: float = 0.0) -> None:
            before = self.now
            super().step(longer_s)
            if self.clock.phase == "window" and not self.clock.complete:
                self.now = before + (self.now - before) / 3

    loop = Faster(0.0001).run()
    blocks = [each for each in loop.log.of("block") if each["phase"] == "window"][2:]
    told_s = sum(each["seconds"] for each in blocks) / sum(each["steps"] for each in blocks)
    assert told_s == pytest.approx(loop.step_s / 3, rel=0.1)


def test_what_takes_nothing_is_told_so() -> None:
    class Free(Loop):
        def step(self, longer_s: float = 0.0) -> None:
            self.now -= 0.0 if self.instruments.off else OWN_S
            super().step(longer_s)

    loop = Free(0.001).run()
    assert loop.told_s == pytest.approx(loop.step_s, rel=0.015)


def test_what_comes_with_every_step_is_no_validation_after_steps_that_went_unseen() -> None:
    class Taught(Loop):
        """By a frozen teacher, whose calls a hook sees."""

        def step(self, longer_s: float = 0.0) -> None:
            if not self.instruments.off:
                self.clock.validation_begins("teacher")
            super().step(longer_s)

    loop = Taught(0.0006).run()
    assert loop.without
    assert loop.clock.recurring.set_apart == NOTHING
    assert not any(block["flagged"] for block in loop.log.of("block"))


def test_they_stay_on_once_a_script_reports_its_samples() -> None:
    """As once an epoch: what was taken for those of unseen steps stood in the way of every report to come."""
    loop = Loop(0.0006)
    loop.batch, reported = 0, ReportedSamples(loop.clock)
    while not loop.clock.complete:
        steps, seen = loop.steps, loop.clock.total_steps
        loop.step()
        reported.stepped(loop.clock.total_steps - seen)
        if steps % 1000 == 999:
            reported.report(32.0 * steps)
    assert 0 < loop.without < 1000
    assert loop.clock.total_samples == pytest.approx(32 * loop.steps, rel=0.02)
    last = loop.log.of("block")[-1]
    assert last["samples"] == pytest.approx(32 * last["steps"], rel=0.02)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_what_cannot_be_known_well_is_not_told(seed: int) -> None:
    """As of a loop that pauses now and then, whose figures were 0.03 ms as well as 1.27 ms."""
    loop, chance = Loop(0.001), random.Random(seed)
    while not loop.clock.complete:
        loop.step(0.02 * (chance.random() < 0.1))
    assert loop.without and loop.instruments.step_s in (0.0, pytest.approx(OWN_S, abs=0.05 * 0.003))
    assert loop.clock.total_steps == loop.steps


@pytest.mark.parametrize(("step_s", "every"), [(0.0004, 64), (0.0006, 50), (0.0008, 40), (0.0033, 18)])
def test_what_the_script_does_now_and_then_is_no_part_of_it(step_s: float, every: int) -> None:
    """As a line that it writes every 50 steps, a tenth of its time: chance says whether they are on then."""
    for first in range(0, every, every // 8):
        loop = Loop(step_s)
        while not loop.clock.complete:
            loop.step(step_s * every / 10 * (loop.steps % every == first))
        own_s = loop.instruments.step_s
        assert own_s == 0.0 or own_s == pytest.approx(OWN_S, abs=2 * ROUGHLY * step_s)


def test_they_stay_on_where_that_is_not_wanted() -> None:
    loop = Loop(0.0006)
    loop.instruments.is_wanted = lambda: False
    assert (loop.run().without, loop.instruments.step_s) == (0, 0.0)


def test_on_a_machine_that_is_slower_by_then_no_more_seconds_are_taken_out() -> None:
    class Slower(Loop):
        def step(self, longer_s: float = 0.0) -> None:
            super().step(longer_s + 2 * self.step_s * (self.clock.phase == "window"))

    loop = Slower(0.0006).run()
    blocks = [each for each in loop.log.of("block") if each["phase"] == "window"][2:]
    assert all(each["instruments_s"] == pytest.approx(OWN_S * each["steps"], rel=0.05) for each in blocks)


def test_they_give_no_step_time_that_it_has_not() -> None:
    class Faster(Loop):
        """With them steps are faster, as where a processor clocks up for it."""

        def step(self, longer_s: float = 0.0) -> None:
            self.now -= 0.0 if self.instruments.off else 2 * OWN_S
            super().step(longer_s)

    assert Faster(0.001).run().instruments.step_s == 0.0


def test_known_to_a_tenth_of_itself_it_is_told() -> None:
    """Of steps of which it is the most part 5% are little: one that pauses now and then is never known to that."""
    loop, chance = Loop(0.00002), random.Random(4)
    told_at: list[float] = []
    while not loop.clock.complete:
        loop.step(0.002 * (chance.random() < 0.05))
        told_at += [loop.now] if loop.instruments.step_s and not told_at else []
    assert loop.instruments.step_s == pytest.approx(OWN_S, rel=0.15)
    assert 0.1 < told_at[0] - loop.instruments._ends_at < MOST_S, "it isn't known to that before"


def blocks_of(loop: Loop) -> list[dict[str, Any]]:
    """Those of training, none of which holds any time but that of its own steps."""
    blocks = [each for each in loop.log.of("block") if not each["flagged"]]
    for each in blocks:
        assert each["seconds"] + each["instruments_s"] == pytest.approx(each["steps"] * (loop.step_s + OWN_S), rel=0.1)
    return blocks


def test_two_stretches_with_an_interruption_between_are_no_pair() -> None:
    """Behind it both would have them, and tell that they take nothing."""
    loop = Loop(0.0006)
    loop.instruments.knows(WRITTEN, CONFIG)
    while not loop.clock.complete:
        off = loop.instruments.off
        loop.step()
        if loop.instruments.off and not off:  # the first stretch of two has ended
            loop.instruments.interrupted()
    assert loop.instruments.step_s == OWN_S and not loop.without
    assert blocks_of(Loop(0.0006).run(epoch=45, epoch_s=0.01, validates=True))


@pytest.mark.parametrize("seed", range(4))
def test_the_loop_warms_up_meanwhile_and_no_block_holds_a_stretch(seed: int) -> None:
    """Whether the last stretch is with them or without. They begin at half of the warm-up, and last for most of it."""
    loop = Loop(0.0006, window=replace(WINDOW, warmup_s=1.0))
    loop.instruments._chance.seed(seed)
    assert [each["phase"] for each in blocks_of(loop.run())].count("warmup") == 3
