"""The step clock with a clock of the test's own: phases, blocks, what is set apart, when the window ends."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.in_process import Log

from tuner.child.clock import StepClock
from tuner.child.precision import relative_half_width
from tuner.child.recorder import Recorder
from tuner.child.records import ChildRequest, Note, Window
from tuner.child.session import Session

WINDOW = Window(
    warmup_steps=10, warmup_s=3.0, block_s=0.25, min_blocks=12, min_s=3.0, max_s=20.0, target_half_width=0.02
)


class Time:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def clock(time: Time, log: Log) -> StepClock:
    return StepClock(log, WINDOW, clock=time)


def _train(clock: StepClock, time: Time, steps: int, seconds: float, samples: int = 8) -> int:
    """Runs up to ``steps`` steps; returns how many ran before the window was complete."""
    for step in range(steps):
        clock.add_samples(samples, seconds / 4)
        time.now += seconds
        if clock.step():
            return step + 1
    return steps


def test_warm_up_lasts_ten_steps_and_three_seconds(clock: StepClock, time: Time, log: Log) -> None:
    _train(clock, time, 200, 0.1)
    phases = [record["phase"] for record in log.records]
    warmup_seconds = sum(r["seconds"] for r in log.records if r["phase"] == "warmup")
    assert phases.index("window") > 0
    assert 3.0 <= warmup_seconds <= 3.5


def test_steady_steps_end_the_window_at_its_shortest(clock: StepClock, time: Time, log: Log) -> None:
    _train(clock, time, 1000, 0.1)
    window = [r for r in log.records if r["phase"] == "window"]
    assert clock.complete
    assert sum(r["seconds"] for r in window) <= 4.0
    assert sum(r["samples"] for r in window) / sum(r["seconds"] for r in window) == pytest.approx(80)
    assert sum(r["wait_s"] for r in window) / sum(r["seconds"] for r in window) == pytest.approx(0.25)


def test_noisy_steps_go_on_to_the_cap(clock: StepClock, time: Time, log: Log) -> None:
    for step in range(10_000):
        _train(clock, time, 1, 0.3 if step % 3 == 0 else 0.9)
        if clock.complete:
            break
    seconds = sum(r["seconds"] for r in log.records if r["phase"] == "window")
    assert clock.complete
    assert seconds >= 20


def test_validation_is_set_apart_with_its_time(clock: StepClock, time: Time, log: Log) -> None:
    _train(clock, time, 5, 0.1)
    time.now += 0.05
    clock.validation_begins()
    time.now += 7.0
    clock.training_resumes()
    _train(clock, time, 5, 0.1)
    blocks = [record for record in log.records if record["kind"] == "block"]
    flagged = [r for r in blocks if r["flagged"]]
    assert [round(r["seconds"], 3) for r in flagged] == [7.0]
    assert flagged[0]["samples"] == 0
    assert all(r["seconds"] < 1 for r in blocks if not r["flagged"])
    told = [(r["pause"], r["begins"]) for r in log.records if r["kind"] == "pause"]
    assert told == [("validation", True), ("validation", False)]


def test_the_end_of_an_epoch_belongs_to_training(clock: StepClock, time: Time, log: Log) -> None:
    """Also where the last step has just closed its block: the fetch that finds no more data may take long."""
    _train(clock, time, 5, 1.0)
    time.now += 0.5
    clock.validation_begins("val")
    time.now += 3.0
    clock.fetch_begins()
    _train(clock, time, 2, 1.0)
    blocks = [record for record in log.records if record["kind"] == "block"]
    assert [block["seconds"] for block in blocks if block["flagged"]] == [3.0]
    assert sum(block["seconds"] for block in blocks if not block["flagged"]) == 4 + 0.5 + 2


def test_what_a_graph_counts_after_validation_is_of_the_steps(log: Log, time: Time) -> None:
    """A whole epoch in one call: its samples are settled by the very look that ends what was set apart."""
    clock = StepClock(log, WINDOW, clock=time)
    counted = [0.0]

    def settle() -> None:
        clock.settle(counted[0], 0.0)
        counted[0] = 0.0

    clock.synchronize = settle
    for _ in range(3):
        clock.fetch_begins()
        time.now += 2.0
        counted[0] += 80
        clock.step(10)
        clock.validation_begins("val")
        time.now += 1.0
    clock.flush()
    blocks = [record for record in log.records if record["kind"] == "block"]
    assert [(block["flagged"], block["steps"], block["samples"]) for block in blocks] == [
        (True, 0, 0.0), (False, 10, 80.0), (True, 0, 0.0), (False, 10, 80.0), (True, 0, 0.0),
    ]  # fmt: skip
    assert clock.total_samples == 240


def test_a_compilation_starts_the_warm_up_again(time: Time, log: Log) -> None:
    graphs = 0
    clock = StepClock(log, WINDOW, clock=time, activity=lambda: graphs)
    _train(clock, time, 35, 0.1)
    assert clock.phase == "window"
    graphs = 1
    _train(clock, time, 5, 0.1)
    assert clock.phase == "warmup"


def test_what_happens_with_every_step_is_part_of_the_loop(time: Time, log: Log) -> None:
    """A function that is traced anew with every batch: its warm-up would never end."""
    graphs = iter(range(10_000))
    clock = StepClock(log, WINDOW, clock=time, activity=lambda: next(graphs))
    assert _train(clock, time, 10_000, 0.1) < 1000
    assert clock.complete


def test_slow_steps_dont_wait_for_ten(clock: StepClock, time: Time) -> None:
    assert _train(clock, time, 100, 10.0) <= 8


def test_the_window_outlasts_what_lay_ready(clock: StepClock, time: Time) -> None:
    clock.min_window_steps = 200
    _train(clock, time, 10_000, 0.1)
    assert clock.total_steps >= 200


def test_flush_sends_an_open_block(clock: StepClock, time: Time, log: Log) -> None:
    _train(clock, time, 3, 0.01)
    assert log.records == []
    clock.flush()
    assert [r["steps"] for r in log.records] == [2], "the first step is start-up"


def test_what_a_script_does_after_its_last_step_is_no_part_of_its_rate(
    clock: StepClock, time: Time, log: Log
) -> None:
    """It saves, or compiles what it shows at its end, and comes to that within a block."""
    _train(clock, time, 3, 0.01)
    time.now += 7.0
    clock.flush()
    assert [round(r["seconds"], 6) for r in log.records] == [0.02]


@pytest.mark.parametrize("steps", [20, 60])
def test_steps_that_nobody_waited_for_do_not_count_beside_whole_blocks(
    clock: StepClock, time: Time, log: Log, steps: int
) -> None:
    """Nor beside those of the warm-up, which count where the window has too few."""
    clock.asynchronous = True
    _train(clock, time, steps, 0.1)
    whole = len(log.records)
    _train(clock, time, 3, 0.1)
    time.now += 7.0
    clock.flush()
    assert len(log.records) == whole > 0


def test_half_width_needs_six_blocks_and_falls_with_more() -> None:
    blocks = [(8.0, 0.1), (8.0, 0.12)] * 2
    assert relative_half_width(blocks) == float("inf")
    few, many = (
        [(8.0, 0.1), (8.0, 0.1), (8.0, 0.13), (8.0, 0.13)] * 3,
        [(8.0, 0.1), (8.0, 0.1), (8.0, 0.13), (8.0, 0.13)] * 30,
    )
    assert relative_half_width(many) < relative_half_width(few)


def test_records_are_lines_and_a_broken_pipe_is_silence() -> None:
    reader, writer = os.pipe()
    recorder = Recorder(writer)
    recorder.emit(Note("one"))
    assert json.loads(os.read(reader, 1000))["text"] == "one"
    os.close(reader)
    recorder.emit(Note("nobody listens"))
    recorder.emit(Note("and nothing is raised"))
    os.close(writer)


def test_a_forked_worker_records_nothing() -> None:
    reader, writer = os.pipe()
    recorder = Recorder(writer)
    pid = os.fork()
    if pid == 0:
        recorder.emit(Note("from the worker"))
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    assert os.read(reader, 1000) == b""
    os.close(reader)


def _blocks_until_the_end(below: float, seconds_of: Callable[[int], float]) -> int:
    """Blocks of ten samples until the window ends; 400 where it doesn't."""
    recorder, now = Log(), [0.0]
    window = Window(0, 0.0, 0.1, 12, 0.0, 60.0, target_half_width=-1.0, hopeless_below=below)
    clock = StepClock(recorder, window, clock=lambda: now[0])
    for number in range(400):
        now[0] += seconds_of(number)
        clock.add_samples(10, 0.0)
        if clock.step():
            return number
    return 400


def test_a_hopeless_rate_ends_the_window_early() -> None:
    def alternating(number: int) -> float:
        return 0.1 if number % 2 else 0.11

    assert _blocks_until_the_end(0.0, alternating) == 400
    assert _blocks_until_the_end(90.0, alternating) == 400  # 95 samples/s are not below it
    assert _blocks_until_the_end(120.0, alternating) < 20


def test_a_slow_spell_is_not_hopeless() -> None:
    """It looks so until the machine has its speed again: a part of the window that is fast enough is doubt enough."""
    assert _blocks_until_the_end(90.0, lambda number: 0.16 if number < 10 else 0.1) == 400


def test_what_lies_ready_is_recorded_at_both_ends_of_a_block(clock: StepClock, time: Time, log: Log) -> None:
    ready = [40.0]
    clock.ready = lambda: ready[0]
    clock.start()
    for _ in range(3):
        ready[0] -= 8
        _train(clock, time, 1, 0.3)
    clock.validation_begins("val")
    time.now += 1.0
    ready[0] = 64.0
    clock.fetch_begins()
    ready[0] = 56.0
    _train(clock, time, 1, 0.3)
    blocks = [(b["flagged"], b["ready_before"], b["ready_after"]) for b in log.of("block")]
    assert blocks[-2:] == [(True, 16.0, 64.0), (False, 64.0, 56.0)], "what was made while it validated isn't training's"
    assert [b[1:] for b in blocks[:-2]] == [(32.0, 24.0), (24.0, 16.0)]


@pytest.mark.parametrize(("left", "told"), [(8.0, 8.0), (0.0, None)])
def test_what_validation_finds_used_up_may_be_an_epochs_end(
    clock: StepClock, time: Time, log: Log, left: float, told: float | None
) -> None:
    """It was taken for what a loop had lived on, and a rate by turns was told a fifth too low for it."""
    ready = [16.0]
    clock.ready = lambda: ready[0]
    _train(clock, time, 4, 0.06)
    ready[0] = left
    clock.validation_begins("val")
    looks = [(b["flagged"], b["ready_before"], b["ready_after"]) for b in log.of("block")]
    assert looks == [(False, 16.0, told)]


def test_tokens_and_the_beginning_of_an_iteration_go_with_their_batch(clock: StepClock, time: Time, log: Log) -> None:
    _train(clock, time, 1, 0.3)
    clock.add_samples(8, 0.1, 100.0, start_s=0.1)
    time.now += 0.3
    clock.step()
    block = log.of("block")[-1]
    assert (block["samples"], block["tokens"], block["starts"], block["start_s"]) == (8, 100.0, 1, 0.1)


def test_batches_may_be_added_by_another_thread() -> None:
    """None is lost, none counts twice."""
    log = Log()
    clock = StepClock(log, replace(WINDOW, block_s=0.001, max_s=1e9, min_blocks=10**9))
    clock.step()
    batches = 20_000

    def fetch() -> None:
        for _ in range(batches):
            clock.add_samples(1, 0.0)

    thread = threading.Thread(target=fetch)
    thread.start()
    while thread.is_alive():
        clock.step()
    clock.step()
    clock.flush()
    assert clock.total_samples == batches
    assert sum(block["samples"] for block in log.of("block")) == batches


@pytest.mark.parametrize("shown_by", ["step", "forward"])
def test_epochs_shorter_than_a_block_still_complete_the_window(log: Log, time: Time, shown_by: str) -> None:
    """That training goes on after a validation is shown by the step's end, or earlier: by the model in train mode."""
    window = replace(WINDOW, warmup_steps=3, warmup_s=0.1, min_blocks=6, min_s=0.3, target_half_width=1e9)
    clock = StepClock(log, window, clock=time)
    for _epoch in range(400):
        for _step in range(8):
            clock.fetch_begins()
            clock.add_samples(16, 0.0)
            if shown_by == "forward" and clock.validating:
                clock.training_resumes()
            time.now += 0.005
            if clock.step():
                return
        clock.validation_begins("val")
        time.now += 0.002
    raise AssertionError("the window never ended")


def _on_a_card(log: Log, *, asynchronous: bool, script_s: float, card_s: float, block_s: float = 0.25) -> float:
    """Seconds a step as the blocks tell them: a card is given each step after ``script_s`` of the script's own."""
    time, done = Time(), 0.0

    def synchronize() -> None:
        time.now = max(time.now, done)

    window = Window(block_s=block_s, warmup_s=0.0, warmup_steps=1, max_s=60.0, target_half_width=0.0)
    clock = StepClock(log, window, synchronize=synchronize, clock=time)
    clock.asynchronous = asynchronous
    while not clock.complete:
        time.now += script_s
        done = max(done, time.now) + card_s
        clock.step()
    blocks = [record for record in log.records if record["kind"] == "block" and record["phase"] == "window"]
    return float(sum(block["seconds"] for block in blocks) / sum(block["steps"] for block in blocks))


@pytest.mark.parametrize(
    ("script_s", "card_s", "excess"), [(0.3, 0.35, 0.15), (0.06, 0.3, 0.03), (0.002, 0.01, 0.01), (5.0, 9.0, 0.6)]
)
def test_waits_for_a_card_hardly_take_the_scripts_lead_away(
    log: Log, script_s: float, card_s: float, excess: float
) -> None:
    """Where the script needs a quarter of a second for itself each step was waited for: 86% too long in the first."""
    seconds = _on_a_card(log, asynchronous=True, script_s=script_s, card_s=card_s)
    assert card_s <= seconds <= card_s * (1 + excess)


def test_each_step_of_a_screen_is_still_a_block(log: Log) -> None:
    _on_a_card(log, asynchronous=True, script_s=0.01, card_s=0.5, block_s=0.0)
    assert {record["steps"] for record in log.records if record["kind"] == "block"} == {1}


def test_what_works_at_once_has_blocks_as_short_as_before(log: Log) -> None:
    assert _on_a_card(log, asynchronous=False, script_s=0.3, card_s=0.0) == pytest.approx(0.3)
    assert {record["steps"] for record in log.records if record["kind"] == "block"} == {1}


def test_a_trial_on_a_card_waits_for_it_rarely() -> None:
    """The clock is told by the device."""
    for label, waits_rarely in (("cuda:0", True), ("cpu", False)):
        session = Session(ChildRequest(device=label), Recorder(None))
        assert session.clock.asynchronous is waits_rarely
