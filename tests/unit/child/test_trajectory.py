"""The course of a training: which steps are noted, and what departs from the baseline."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from support.in_process import InProcess, Log

from tuner.child.counts import Schedule
from tuner.child.trajectory import FEWEST_STEPS, Trajectory

SPLIT = {"batch_size": 8, "grad_accumulation": 4}
FREED = {"batch_size": 64, "lr_scale": 2.0}
WRITTEN = {"batch_size": 32, "grad_accumulation": 1}


class Optimizer:
    """Anything that can be told from others."""


class Course(Trajectory):
    """Of a training whose schedules are given, and whose steps train on ``samples`` each."""

    given: tuple[Schedule, ...] = ()

    def train(self, *rates: float, samples: float = 32.0) -> None:
        optimizer = Optimizer()
        for rate in rates:
            self.step_begins(optimizer, lambda rate=rate: [rate])  # type: ignore[misc]  # a default makes it this rate
            self.stepped(optimizer)
            self.session.clock.add_samples(samples, 0.0)
            self.session.clock.step()
        self.observe()
        self.session.facts.optimizer_steps = self.steps

    def schedules(self) -> list[Schedule]:
        return list(self.given)


def course(config: dict[str, Any] | None = None, **knowledge: Any) -> Course:
    return Course(InProcess(config or {}, {"as_written": WRITTEN, **knowledge}).session)


def test_ever_sparser_steps_are_noted_and_read() -> None:
    """A reading may wait for a device."""
    made, optimizer = course(), Optimizer()
    read: list[int] = []

    def rates(step: int) -> list[float]:
        read.append(step)
        return [0.1]

    for step in range(1, 1001):
        made.step_begins(optimizer, partial(rates, step))
        made.stepped(optimizer)
    assert [step for step, _ in made.rates] == read
    assert read[:16] == list(range(1, 17))
    assert 30 < len(read) < 40
    assert max(b / a for a, b in pairwise(read[16:])) < 1.3


def test_a_call_of_several_steps_has_the_rate_of_its_first() -> None:
    made, optimizer = course(), Optimizer()
    for call in range(6):
        made.step_begins(optimizer, lambda call=call: [float(call)])  # type: ignore[misc]  # as above
        made.stepped(optimizer, 4)
    assert made.rates == [(1 + 4 * call, float(call)) for call in range(5)]


def test_other_optimizers_are_looked_at_once() -> None:
    made, first, second = course(), Optimizer(), Optimizer()
    for step in range(3):
        for optimizer, rates in ((first, [0.1 * step]), (second, [0.5, 0.6])):
            made.step_begins(optimizer, lambda rates=rates: rates)  # type: ignore[misc]  # as above
            made.stepped(optimizer)
    assert made.steps == 3
    assert [step for step, _ in made.rates] == [1, 2, 3]
    assert made.group_rates == [(1, 1, (0.5, 0.6))]


@pytest.mark.parametrize(
    ("rates", "why"),
    [
        ((0.1, 0.2, 0.3), ""),
        ((0.1, 0.2001, 0.3), ""),
        ((0.1, 0.21, 0.3), "step 2 is taken at a learning rate of 0.21, as written 0.2"),
        ((0.025, 0.05, 0.075), "step 1 is taken at a learning rate of 0.025, as written 0.1"),
    ],
)
def test_every_rate_is_the_scripts_where_a_step_has_as_many_samples(rates: tuple[float, ...], why: str) -> None:
    made = course(SPLIT, rates=[[1, 0.1], [2, 0.2], [3, 0.3]])
    made.train(*rates)
    assert made.departure() == why


def test_a_freed_batch_has_the_first_rate_times_its_factor() -> None:
    written = [[1, 0.1], [2, 0.2]]
    twice = "step 1 is taken at a learning rate of 0.4, as written 0.1 times 2"
    for rates, why in (((0.2, 0.7), ""), ((0.4, 0.7), twice)):
        made = course(FREED, rates=written)
        made.train(*rates)
        assert made.departure() == why


@pytest.mark.parametrize(("horizon", "departs"), [(50.0, False), (100.0, True)])
def test_a_schedule_covers_as_many_samples(horizon: float, departs: bool) -> None:
    known = [{"name": "Cosine", "horizon": {"length": 100.0}, "steps": 40}]
    made = course(FREED, rates=[[1, 0.1]], schedules=known, samples=40 * 32.0)
    made.given = (Schedule("Cosine", {"length": horizon}, 40),)
    made.train(*[0.2] * 40, samples=64.0)
    assert made.departure() == departs * "Cosine has length 2 times the samples that it covers as written"


def test_what_follows_the_loss_is_held_to_its_first_step() -> None:
    known = [{"name": "ReduceLROnPlateau", "horizon": {}, "steps": 0}]
    for second, first in ((0.05, 0.1), (0.1, 0.05)):
        made = course(SPLIT, rates=[[1, 0.1], [2, 0.1]], schedules=known)
        made.train(first, second)
        assert bool(made.departure()) == (first != 0.1)


def test_a_step_trains_on_as_many_samples() -> None:
    steps = FEWEST_STEPS + 1
    known = {"rates": [[1, 0.1]], "steps": steps, "samples": 32.0 * steps, "optimizer_steps": steps}
    for samples, why in ((32.0, ""), (8.0, "a step trains on 8 samples, as written on 32")):
        made = course(SPLIT, **known)
        made.train(*[0.1] * steps, samples=samples)
        assert made.departure() == why


def test_one_of_several_ranks_is_held_to_its_own_part_of_all_samples() -> None:
    """What is known of the script as written has the samples of all ranks, the one that looks its own."""
    steps = FEWEST_STEPS + 1
    known = {"rates": [[1, 0.1]], "steps": steps, "samples": 2 * 32.0 * steps, "optimizer_steps": steps}
    kept = course(SPLIT, **known)
    kept.session.ranks = 2
    kept.train(*[0.1] * steps)
    assert kept.departure() == ""
    schedules = [{"name": "Cosine", "horizon": {"length": 100.0}, "steps": steps}]
    larger = course(FREED, **known, schedules=schedules)
    larger.session.ranks = 2
    larger.given = (Schedule("Cosine", {"length": 50.0}, steps),)
    larger.train(*[0.2] * steps, samples=64.0)
    assert larger.departure() == ""


UNREAD = "the learning rate of its steps can't be read, that of the script as written could be"
UNREAD_BEFORE = "the learning rate of the script as written couldn't be read, that of these steps can be"
IN_NONE = "the learning rate of no step is known both of it and of the script as written"


def reports_of(made: Course) -> list[dict[str, Any]]:
    """What was found of the knobs, in its order."""
    assert isinstance(made.session.recorder, Log)
    return made.session.recorder.of("knob")


@pytest.mark.parametrize(
    ("known", "rates", "why"),
    [
        ({"rates": [[1, 0.1]]}, [[0.1]], ""),
        ({"rates": [[1, 0.1]]}, [[]], UNREAD),
        ({"rates": []}, [[0.1]], UNREAD_BEFORE),
        ({"rates": []}, [[]], ""),
        ({"rates": [[1, 0.1]]}, [[], [0.2]], IN_NONE),
        ({"rates": [[1, 0.1]]}, [[0.1, 0.2]], IN_NONE),
        ({"rates": [[1, 0.1]], "schedules": [{"name": "Cosine", "horizon": {}, "steps": 1}]}, [[0.1]],
         "its schedules (none) can't be held against those as written (Cosine)"),
    ],
)  # fmt: skip
def test_a_course_that_cannot_be_compared_verifies_nothing(
    known: dict[str, Any], rates: list[list[float]], why: str
) -> None:
    made, optimizer = course(SPLIT, optimizer_steps=1, **known), Optimizer()
    for read in rates:
        made.step_begins(optimizer, lambda read=read: read)  # type: ignore[misc]  # as above
        made.stepped(optimizer)
    made.observe()
    made.session.knobs.compare("grad_accumulation", 4)
    made.report()
    assert (made.departure(), made.doubt()) == ("", why)
    reports = [each for each in reports_of(made) if each["knob"] == "grad_accumulation"]
    assert (reports[-1]["evidence"], reports[-1]["reason"]) == (("unverifiable", why) if why else ("verified", ""))


def test_what_is_contradicted_already_stays_so() -> None:
    made, optimizer = course(SPLIT, optimizer_steps=1, rates=[[1, 0.1]]), Optimizer()
    made.step_begins(optimizer, list)
    made.stepped(optimizer)
    made.session.clock.step()
    made.session.knobs.compare("grad_accumulation", 2)
    made.report()
    reports = reports_of(made)
    assert [(each["knob"], each["evidence"]) for each in reports] == [
        ("grad_accumulation", "contradicted"), ("batch_size", "unverifiable"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("as_written", "now", "why"),
    [
        (5.0, 2.0, ""),
        (1.0, 0.0, ""),
        (100.0, 50.0, ""),
        (0.0, 1.0, ""),
        (0.0, 50.0, "Cosine has length 50, as written 0"),
        (10.0, 10.0, "Cosine has length 2 times the samples that it covers as written"),
    ],
)
def test_lengths_are_whole_steps(as_written: float, now: float, why: str) -> None:
    """A twentieth of a hundred steps are five, and of fifty two: no schedule of the script's own is another for it."""
    known = [{"name": "Cosine", "horizon": {"length": as_written}, "steps": 40}]
    made = course(FREED, rates=[[1, 0.1]], schedules=known, samples=40 * 32.0)
    made.given = (Schedule("Cosine", {"length": now}, 40),)
    made.train(*[0.2] * 40, samples=64.0)
    assert made.departure() == why


def test_a_length_that_is_missing_departs() -> None:
    known = [{"name": "Steps", "horizon": {"boundary 1": 10.0, "boundary 2": 20.0}, "steps": 40}]
    made = course(FREED, rates=[[1, 0.1]], schedules=known, samples=40 * 32.0)
    made.given = (Schedule("Steps", {"boundary 1": 5.0}, 40),)
    made.train(*[0.2] * 40, samples=64.0)
    assert made.departure() == "Steps has no boundary 2, as written 20"


def stages(count: int, name: str = "CosineAnnealingLR", length: float = 16.0) -> list[dict[str, Any]]:
    """A scheduler that is made anew so many times."""
    return [{"name": name, "horizon": {"T_max": length}, "steps": 16}] * count


@pytest.mark.parametrize(("seen", "known"), [(3, 70), (70, 3)])
def test_a_run_that_gets_further_makes_more_schedulers(seen: int, known: int) -> None:
    """One for each stage or fold: those that both runs made are held against each other."""
    for length, departs in ((16.0, False), (64.0, True)):
        made = course(SPLIT, rates=[[1, 0.1]], schedules=stages(known), optimizer_steps=1)
        made.given = tuple(Schedule(**each) for each in stages(seen, length=length))
        made.train(0.1)
        assert made.departure() == departs * "CosineAnnealingLR has T_max 64, as written 16"
        assert made.doubt() == ""


def test_more_schedulers_of_a_freed_batch_are_doubted_briefly() -> None:
    """How many samples each of them covers isn't known: those of all of them are."""
    made = course(FREED, rates=[[1, 0.1]], schedules=stages(70), samples=640.0, optimizer_steps=1)
    made.given = tuple(Schedule(**each) for each in stages(3))
    made.train(*[0.2] * 20, samples=64.0)
    assert made.departure() == ""
    assert made.doubt() == (
        "its schedules (3 CosineAnnealingLR) can't be held against those as written (70 CosineAnnealingLR)"
    )


def test_other_schedules_are_doubted_briefly() -> None:
    made = course(SPLIT, rates=[[1, 0.1]], schedules=[*stages(2), *stages(70, "StepLR")], optimizer_steps=1)
    made.given = tuple(Schedule(**each) for each in (*stages(1), *stages(1, "A"), *stages(1)) * 20)
    made.train(0.1)
    assert made.departure() == ""
    assert made.doubt() == (
        "its schedules (CosineAnnealingLR, A, 2 CosineAnnealingLR, A and 55 more) can't be held against those as "
        "written (2 CosineAnnealingLR, 70 StepLR)"
    )


def train_course(made: Course, *rates: float, initial: float) -> None:
    """As ``train``, with what the schedule starts from."""
    optimizer = Optimizer()
    for rate in rates:
        made.step_begins(optimizer, lambda rate=rate: [rate], lambda: [initial])  # type: ignore[misc]  # as above
        made.stepped(optimizer)
    made.observe()


WARM_UP = [[step, 0.1 * (step - 1) / 20] for step in range(1, 22)]


def test_a_warm_up_from_nothing_hides_no_rate_that_was_scaled_twice() -> None:
    """The first step is taken at 0 in both."""
    for initial, why in ((0.2, ""), (0.4, "its schedule starts from a learning rate of 0.4, as written 0.1 times 2")):
        made = course(FREED, rates=WARM_UP, initial_rates=[[0, [0.1]]])
        train_course(made, *(initial * step / 10 for step in range(8)), initial=initial)
        assert made.departure() == why


def test_a_rate_that_moves_with_the_steps_covers_more_samples() -> None:
    """Half of the steps, each of twice the samples: the warm-up has to be through after half as many steps."""
    why = "its learning rate moves with its steps: it covers 2 times the samples that it does as written"
    for steps, told in ((20, why), (10, "")):
        made = course(FREED, rates=WARM_UP, initial_rates=[[0, [0.1]]])
        train_course(made, *(0.2 * min(1.0, step / steps) for step in range(10)), initial=0.2)
        assert made.departure() == told


def test_a_constant_rate_moves_with_nothing() -> None:
    made = course(FREED, rates=[[step, 0.1] for step in range(1, 22)], initial_rates=[[0, [0.1]]])
    train_course(made, *[0.2] * 10, initial=0.2)
    assert made.departure() == ""


@pytest.mark.parametrize(
    ("now", "before", "by_steps"),
    [
        ((100, 100), 200, True),
        pytest.param((50, 100), 160, True, id="begins late"),
        pytest.param((100, 100), 400, True, id="of all, too"),
        pytest.param((10, 100), 10, False, id="by epochs"),
        pytest.param((10, 100), 210, False, id="by epochs, beside one of all by steps"),
        pytest.param((5, 100), 0, False, id="by epochs, of which the first one wasn't through as written"),
    ],
)
def test_a_moving_average_goes_by_steps_or_epochs(now: tuple[int, int], before: int, *, by_steps: bool) -> None:
    """``before``: updates of averages of all kinds in 200 steps as written; ``now``: of moving ones, and the steps."""
    made = course(FREED, averagings=before, optimizer_steps=200)
    made.forgetting, made.session.facts.optimizer_steps = now
    assert made._averages_by_steps(made.session.request.knowledge, 2.0) is by_steps
