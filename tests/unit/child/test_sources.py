"""Which source of data trains: by what is fetched between gradients."""

from __future__ import annotations

import itertools
import threading

import pytest
from support.in_process import Log

from tuner.child.clock import StepClock
from tuner.child.records import Window
from tuner.child.sources import DataSource, TrainingSources

ENDLESS = Window(block_s=1e9)


class Trial:
    """A clock, and sources by name."""

    def __init__(self, known: tuple[str, ...] = (), log: Log | None = None) -> None:
        self.clock = StepClock(log or Log(), ENDLESS, clock=itertools.count().__next__)
        self.counted: list[tuple[str, int]] = []
        self.sources: TrainingSources[DataSource] = TrainingSources(
            self.clock, known, lambda: True, lambda source, samples: self.counted.append((source.key, samples))
        )

    def source(self, name: str) -> DataSource:
        return next((s for s in self.sources if s.key == name), None) or self.sources.add(DataSource(name, name))

    def fetch(self, name: str, samples: int = 8) -> None:
        self.sources.fetch_begins(self.source(name))
        self.sources.fetched(self.source(name), samples, 0.5)

    def step(self, *fetched: str) -> bool:
        for name in fetched:
            self.fetch(name)
        new = self.sources.gradient_ran()
        self.clock.step()
        return new


@pytest.fixture
def trial() -> Trial:
    return Trial()


def test_the_source_that_is_fetched_before_gradients_trains(trial: Trial) -> None:
    assert trial.step("train"), "the primary source was found"
    assert not trial.step("train")
    trial.fetch("test")
    assert [s.key for s in trial.sources.training()] == ["train"]
    assert trial.clock.total_samples == 16
    assert trial.counted == [("train", 8), ("train", 8)]


def test_batches_that_nothing_is_trained_on_are_told_with_each_doubling() -> None:
    trial, told = Trial(), list[int]()
    trial.sources = TrainingSources(trial.clock, (), lambda: True, on_unstepped=told.append)
    for _ in range(600):
        trial.fetch("data")
    assert told == [128, 256, 512]
    trial.step("data")
    for _ in range(600):
        trial.fetch("data")
    assert told == [128, 256, 512]


def test_a_pass_over_all_data_before_training_counts_for_its_last_batch_only(trial: Trial) -> None:
    for _ in range(100):
        trial.fetch("statistics")
    trial.step("train")
    assert trial.clock.total_samples == 8
    assert trial.sources.primary is trial.source("train")


def test_batches_fetched_ahead_of_the_first_gradient_count(trial: Trial) -> None:
    """Trainers look one batch ahead, or fetch all micro-batches of a step before they train on the first."""
    trial.sources.iteration_began(trial.source("train"), 0.0)
    for size in (8, 8, 4):
        trial.fetch("train", size)
        trial.fetch("test")
    trial.fetch("train")
    trial.step()
    assert trial.clock.total_samples == 28
    assert trial.counted == [("train", 8)], "the size of a batch, not of all that were held"
    trial.step("train")
    assert trial.clock.total_samples == 36


def test_an_earlier_pass_over_the_training_data_counts_for_nothing(trial: Trial) -> None:
    """Statistics are taken in an iteration of their own: what training is fed comes from the newest one."""
    for batches in (100, 1, 2):
        trial.sources.iteration_began(trial.source("train"), 0.0)
        for _ in range(batches):
            trial.fetch("train")
    trial.step()
    assert trial.clock.total_samples == 16


def test_sources_that_are_fetched_in_every_gap_train_together(trial: Trial) -> None:
    for _ in range(4):
        trial.step("labelled", "unlabelled")
    trial.step("unlabelled")
    assert {s.key for s in trial.sources.training()} == {"labelled", "unlabelled"}
    assert trial.clock.total_samples == 5 * 8, "the samples of one of them are those of the step"


def test_the_loop_waits_for_each_source_that_feeds_it() -> None:
    log = Log()
    trial = Trial(log=log)
    for _ in range(5):
        trial.step("labelled", "unlabelled")
    trial.clock.flush()
    (told,) = log.of("block")
    assert (told["steps"], told["samples"], told["wait_s"]) == (4, 32.0, 4.0), "of 0.5 s each, for two sources"


def test_another_source_takes_over_once_it_fed_more_gradients(trial: Trial) -> None:
    for _ in range(3):
        trial.step("search for a rate")
    for _ in range(4):
        trial.step("train")
    assert trial.sources.primary is trial.source("train")
    assert trial.sources.changes_of_primary == 1


def test_what_is_fetched_without_a_gradient_is_validation(trial: Trial) -> None:
    for _ in range(4):
        trial.step("train")
    trial.fetch("test")
    assert trial.clock.validating
    trial.step("train")
    assert not trial.clock.validating


def test_a_batch_of_another_task_now_and_then_is_trained_on() -> None:
    """Of its loader every eighth step takes one batch: no validation, and its time is the loop's."""
    log = Log()
    trial = Trial(log=log)
    for number in range(64):
        trial.step("train", *(["other task"] if number % 8 == 7 else []))
    assert not trial.clock.validating
    trial.clock.flush()
    assert not any(told["flagged"] for told in log.of("block"))
    assert sum(told["steps"] for told in log.of("block")) == 63, "all but the first, at whose end the clock starts"


def test_several_batches_without_a_step_between_them_are_validation() -> None:
    log = Log()
    trial = Trial(log=log)
    for _ in range(8):
        trial.step("train")
    for _ in range(2):
        trial.fetch("test")
    for _ in range(8):
        trial.step("train")
    assert [told["flagged"] for told in log.of("block")] == [False, True]


def test_a_graph_that_feeds_itself_has_no_primary_source(trial: Trial) -> None:
    trial.fetch("statistics")
    trial.sources.graph_fed_itself()
    assert not trial.step()
    assert trial.sources.primary is None and trial.sources.feeds_itself
    assert trial.clock.total_samples == 0


def test_nothing_counts_while_another_framework_trains() -> None:
    trial = Trial()
    trial.sources = TrainingSources(trial.clock, (), lambda: False)
    for _ in range(3):
        trial.step("train")
    assert trial.clock.total_samples == 0
    assert trial.source("train").usual_size == 8, "what is known of it is kept all the same"


def test_the_probes_sides(trial: Trial) -> None:
    batches = iter([("first", 4), ("second", 4)])
    again = [trial.sources.first_again(trial.source("train"), lambda: next(batches)) for _ in range(3)]
    assert again == ["first"] * 3
    trial = Trial()
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        trial.clock.step()
        if steps == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial.sources.drain(trial.source("train"), lambda: (4, 0.1), step)
    assert trial.clock.total_samples == 20


def test_what_another_thread_waits_is_not_the_loops_wait(trial: Trial) -> None:
    for _ in range(3):
        thread = threading.Thread(target=trial.fetch, args=("train",))
        thread.start()
        thread.join()
        trial.step()
    assert trial.sources.primary is trial.source("train")
    assert trial.clock.total_samples == 24
    assert trial.sources.wait_is_hidden


def test_a_thread_that_fetches_ahead_begins_no_validation(trial: Trial) -> None:
    for _ in range(4):
        trial.step("train")
    thread = threading.Thread(target=trial.fetch, args=("test",))
    thread.start()
    thread.join()
    assert not trial.clock.validating
    assert not trial.sources.wait_is_hidden
    trial.fetch("test")
    assert trial.clock.validating


def test_gaps_hold_while_another_thread_fetches(trial: Trial) -> None:
    """What gradients clear and fetches fill: without a lock it changes while it is read."""
    through = False

    def fetch() -> None:
        number = 0
        while not through:
            trial.fetch(f"source {number % 50}")
            number += 1

    thread = threading.Thread(target=fetch)
    thread.start()
    try:
        for _ in range(3000):
            trial.sources.gradient_ran()
    finally:
        through = True
        thread.join()
    assert sum(source.training_gaps for source in trial.sources) >= trial.sources.gaps > 0


def test_the_beginning_of_each_iteration_is_known(trial: Trial) -> None:
    trial.sources.iteration_began(trial.source("train"), 2.0)
    trial.step("train")
    for _ in range(3):
        trial.sources.iteration_began(trial.source("train"), 1.0)
        trial.step("train", "train")
    source = trial.source("train")
    assert (source.first_start_s, source.later_starts, source.later_start_s) == (2.5, 3, 4.5)


def test_what_fills_a_queue_counts_once_the_queue_gives_it(trial: Trial) -> None:
    source, queue = trial.source("train"), list[tuple[DataSource, int, int]]()
    trial.step("train")

    def fill() -> None:
        trial.sources.feeders[threading.get_ident()] = lambda *batch: queue.append(batch)
        assert trial.sources.is_fed_here
        trial.sources.iteration_began(source, 3.0)
        for _ in range(2):
            trial.fetch("train")

    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()
    assert queue == [(source, 8, 0)] * 2 and source.fetches == 1 and trial.clock.total_samples == 8
    assert not trial.sources.is_fed_here
    trial.sources.fetched(source, 8, 0.25)
    assert source.first_start_s == 0.25, "what the thread took to begin was waited for here"
    trial.step()
    assert trial.clock.total_samples == 16 and not trial.sources.wait_is_hidden


def test_a_loader_that_trains_again_is_one_that_trains(trial: Trial) -> None:
    """Whichever has fed a gradient meanwhile; its samples of before count again."""
    trial.sources.resigns = True
    for _ in range(10):
        trial.step("train")
    for _ in range(6):
        trial.step()
    assert (trial.sources.training(), trial.clock.total_samples) == ([], 0)
    trial.step("other")
    for _ in range(10):
        trial.step("train")
    assert trial.sources.primary is trial.source("train")
    assert trial.sources.is_training(trial.source("train")) and trial.clock.total_samples >= 18 * 8


def test_gradients_that_no_step_follows_leave_a_loader_in_its_place(trial: Trial) -> None:
    trial.sources.resigns = True
    trial.step("train")
    for _ in range(40):
        trial.sources.gradient_ran()
    assert trial.sources.primary is trial.source("train")


def iterated(trial: Trial, *lengths: int, trains: bool = True) -> DataSource:
    """The source after iterations of so many batches each, of which the last one goes on."""
    for length in lengths:
        trial.sources.iteration_began(trial.source("train"), 0.0)
        for _ in range(length):
            if trains:
                trial.step("train")
            else:
                trial.fetch("train")
    return trial.source("train")


def test_iterations_that_are_broken_off_take_what_they_took(trial: Trial) -> None:
    assert iterated(trial, 4, 6, 3).taken_of(100) == 5.0
    assert iterated(trial, 4, 6, 3).taken_of(5) == 0.0, "all of them"


def test_of_a_first_iteration_that_goes_on_nobody_knows_what_is_taken(trial: Trial) -> None:
    assert iterated(trial, 9).taken_of(100) == 0.0


def test_a_look_at_the_data_breaks_no_epoch_off(trial: Trial) -> None:
    iterated(trial, 1, 1, trains=False)
    assert iterated(trial, 9).taken_of(100) == 0.0


def test_a_short_stage_says_nothing_of_longer_iterations(trial: Trial) -> None:
    """As a search for a learning rate, before the first epoch."""
    assert iterated(trial, 10, 11).taken_of(100) == 0.0


def test_a_window_comes_to_its_end_where_many_loaders_train_in_turn() -> None:
    """One a client, of ten steps each: with each a block ended, before it was long enough for anything to be asked."""
    now, window = [0.0], Window(warmup_s=0.1, min_s=0.3, max_s=1.0)
    clock = StepClock(Log(), window, clock=lambda: now[0])
    sources: TrainingSources[DataSource] = TrainingSources(clock, (), lambda: True)
    clients = [sources.add(DataSource(name, name)) for name in "abcdefghij"]
    for step in range(5000):
        client = clients[step // 10 % len(clients)]
        sources.fetch_begins(client)
        sources.fetched(client, 8, 0.0)
        sources.gradient_ran()
        now[0] += 0.001
        if clock.step():
            break
    assert clock.complete
    assert clock.total_steps < 2000
